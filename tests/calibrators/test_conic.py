"""Conic scaling with contexts; the contract tests of the registry hold it without."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from segcal import ArrayCases, Context, FitConfig, audit, evaluate, fit, make_calibrator
from segcal.calibrators.conic import Conic, hat_shares, positions, quantile_knots, some_voxels
from segcal.calibrators.convex import Block, ConvexCalibrator
from segcal.calibrators.neighbourhood import CONTEXTS, neighbourhood
from segcal.errors import InputError

LOOKING = [name for name in CONTEXTS if name != "disagreement"]


def logits_of(*shape, seed=0, dtype=torch.float64):
    return torch.as_tensor(3 * np.random.default_rng(seed).normal(size=shape)).to(dtype)


@pytest.fixture(params=[False, True], ids=["conic", "conic_class"])
def by_class(request):
    return request.param


def scores_by_hand(calibrator, logits, around):
    """Scores of one voxel (C,) with contexts (K,), by the definition."""
    state = {name: value.detach().numpy() for name, value in calibrator.state_dict().items()}
    knots, ends = state["knots"], [*state["knots"][1:], np.inf]
    first = int(np.argmax(logits))
    shares, start = [], 0
    for value, count in zip(around, calibrator.hat_counts, strict=True):
        spots = state["hat_knots"][start : start + count]
        shares += [np.interp(value, spots, np.eye(count)[h]) for h in range(count)]
        start += count
    shares = np.array(shares)
    scores = np.zeros(len(logits))
    for k in range(len(logits)):
        gap = logits[first] - logits[k]
        for j in range(calibrator.ramps):
            slope = state["base"][j] + shares @ state["hats"][:, j]
            if calibrator.by_class:
                pair = state["of_pair"][first if len(state["of_pair"]) > 1 else 0, k]
                slope += pair[j // 3]
            scores[k] -= slope * np.clip(gap - knots[j], 0, ends[j] - knots[j])
    return scores


@pytest.mark.parametrize("classes", [3, 13])
def test_scores_are_those_of_the_definition(classes, by_class, randomise):
    calibrator = randomise(Conic(classes, by_class, contexts=["gap_near", "share_far", "gap_image"]))
    logits = logits_of(1, classes, 6, 7)
    found = calibrator.scores(logits).detach()
    around = neighbourhood(logits, None, calibrator.contexts, "conic")
    for y, x in [(0, 0), (3, 5), (5, 6)]:
        expected = scores_by_hand(calibrator, logits[0, :, y, x].numpy(), around[0, :, y, x].numpy())
        np.testing.assert_allclose(found[0, :, y, x].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("space", [(9, 11), (3, 9, 11), (1, 1), (1, 4, 5)])
@pytest.mark.parametrize("edge", [False, True])
def test_decisions_are_kept_whatever_is_seen(by_class, dtype, space, edge, randomise):
    calibrator = randomise(Conic(4, by_class, contexts=LOOKING), edge=edge)
    logits = logits_of(2, 4, *space, dtype=dtype)
    logits[:, 1] = torch.where(logits[:, 0] > 0, logits[:, 0], logits[:, 1])  # ties
    out = calibrator(logits)
    assert torch.equal(out.argmax(1), logits.argmax(1))
    if not by_class:
        order = logits.argsort(dim=1, descending=True, stable=True)
        scores = calibrator.scores(logits.to(out.dtype)).detach()
        assert float(scores.gather(1, order).diff(dim=1).max()) <= 0


def test_a_tile_with_its_margin_and_the_mean_of_the_image_gives_what_the_image_gives(by_class, randomise):
    calibrator = randomise(Conic(3, by_class, contexts=LOOKING))
    logits = logits_of(1, 3, 60, 70)
    gap = logits.topk(2, dim=1).values
    whole = Context(mean_gap=(gap[:, 0] - gap[:, 1]).clamp(max=8).mean((1, 2)))
    reach = calibrator.reach(2)
    assert reach == (20, 20)
    tile = calibrator(logits[:, :, 5:60, 0:47], whole)
    torch.testing.assert_close(tile[:, :, 20:, :27], calibrator(logits)[:, :, 25:60, :27], rtol=0, atol=1e-9)


def test_members_change_the_result_only_where_they_are_seen(by_class, randomise):
    logits, disagreement = logits_of(1, 3, 4, 5), torch.rand(1, 4, 5, generator=torch.Generator().manual_seed(0))
    contexts = [Context(disagreement=disagreement), Context(disagreement=disagreement / 10)]
    seeing = randomise(Conic(3, by_class, contexts=["disagreement"]))
    seeing.hat_knots.copy_(torch.linspace(-8, 0, 5))
    assert not torch.equal(*(seeing(logits, context) for context in contexts))
    blind = randomise(Conic(3, by_class, contexts=["gap_near"]))
    assert torch.equal(*(blind(logits, context) for context in contexts))


@pytest.mark.parametrize("contexts", [[], ["share_near", "gap_image"]])
def test_the_fused_loops_are_those_of_the_written_out_design(by_class, contexts):
    generator = torch.Generator().manual_seed(0)
    calibrator = Conic(5, by_class, contexts=contexts)
    logits, around = logits_of(5, 200), torch.rand(6, 200, generator=generator, dtype=torch.float64)
    calibrator.prepare([(logits, around)])
    features = calibrator.frame(logits.T, around).features.T.contiguous()
    weight = torch.rand(200, generator=generator, dtype=torch.float64)
    block = Block(features, torch.randint(0, 5, (200,), generator=generator).int(), weight, weight)
    theta = 0.3 * torch.rand(calibrator.num_parameters(), generator=generator, dtype=torch.float64)
    value, gradient = calibrator.likelihood(block, theta)
    other, written = ConvexCalibrator.likelihood(calibrator, block, theta)
    assert value == pytest.approx(other, rel=1e-12)
    torch.testing.assert_close(gradient, written, rtol=0, atol=1e-10)
    bend, written = calibrator.hessian(block, theta, 2.0), ConvexCalibrator.hessian(calibrator, block, theta, 2.0)
    torch.testing.assert_close(bend, written, rtol=0, atol=1e-3 * float(written.abs().max()))
    calibrator.set_theta(theta[None])
    log_probs = calibrator.scores_at(logits, around).log_softmax(0).detach()
    own = log_probs.gather(0, block.target.long()[None])[0]
    assert value == pytest.approx(-float((weight * own).sum()), rel=1e-12)


def cases_of(count=6, classes=3, space=(12, 13), seed=0, **more):
    """Cases whose confidence is too high where neighbours disagree."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(count, classes, *space))
    truth = (0.4 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    return ArrayCases(list(logits.astype("float32")), list(truth), **more)


@pytest.mark.parametrize("name", ["conic", "conic_class"])
def test_the_optimum_is_that_of_an_independent_solver(name):
    strength, cases = 1e-2, cases_of()
    config = FitConfig(lam=strength, mu=strength, nu=strength, voxels=10_000)
    fitted = fit(make_calibrator(name, 3, contexts=["share_near"]), cases, config=config)
    calibrator, certificate = fitted.calibrator, fitted.certificate
    assert certificate.converged
    assert certificate.kkt_residual <= 1e-6
    logits = torch.stack([case.logits for case in cases]).double()
    labels = torch.stack([case.labels for case in cases])
    theta = calibrator.theta()[0].detach()
    width = 5 * 8

    def objective(values):
        variable = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        sizes = [(8,), (5, 8), *([(3, 3, 3)] if name == "conic_class" else [])]
        parts = variable.split([int(np.prod(size)) for size in sizes])
        named = dict(zip(calibrator.variables, (p.reshape(s) for p, s in zip(parts, sizes, strict=True)), strict=True))
        scores = torch.func.functional_call(_Scores(calibrator), {f"inner.{k}": v for k, v in named.items()}, logits)
        nll = torch.nn.functional.cross_entropy(scores, labels)
        base, hats, own = variable[:8], variable[8 : 8 + width].reshape(5, 8), variable[8 + width :]
        penalty = (hats.diff(dim=0) ** 2).sum() + 1e-3 * (hats**2).sum() + (own**2).sum()
        penalty = penalty + (base.diff() ** 2).sum() + (hats.diff(dim=1) ** 2).sum()
        total = nll + strength * penalty
        total.backward()
        return float(total.detach()), variable.grad.numpy()

    low = [1e-3] * 8 + [0.0] * (len(theta) - 8)
    high = [1e3] * (8 + width) + [0.2 * certificate.inverse_temperature] * (len(theta) - 8 - width)
    bounds = list(zip(low, high, strict=True))
    start = np.where(np.array(low) > 0, 0.5, 0.05)
    best = minimize(
        objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15}
    )
    assert objective(theta.numpy())[0] <= best.fun + 1e-6
    assert certificate.objective == pytest.approx(best.fun, abs=1e-6)


class _Scores(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, logits):
        return self.inner.scores(logits)


@pytest.mark.parametrize("name", ["conic", "conic_class"])
def test_a_strong_penalty_leaves_temperature_scaling(name):
    cases = cases_of()
    strong = fit(name, cases, config=FitConfig(lam=1e6, mu=1e6, nu=1e6)).calibrator
    simple = fit("ts", cases).calibrator
    logits = torch.stack([case.logits for case in cases]).double()
    torch.testing.assert_close(strong(logits), simple(logits), rtol=0, atol=2e-3)


def test_a_fit_uses_what_the_cases_offer_and_says_so():
    assert fit("conic", cases_of(), config=FitConfig(lam=1.0, nu=1.0)).calibrator.contexts == (
        "gap_far", "share_far", "gap_image",
    )  # fmt: skip
    line = fit("conic", cases_of(space=(60,)), config=FitConfig(lam=1.0, nu=1.0)).calibrator
    assert line.contexts == ("gap_image",)
    assert line.options["contexts"] == ["gap_image"]
    assert "sees confidence in the image; 24 parameters" in repr(line)
    with pytest.raises(InputError, match="contexts has 'disagreement', but the cases do not offer it"):
        fit(make_calibrator("conic", 3, contexts=["disagreement"]), cases_of())


@pytest.mark.parametrize("contexts", [["share_near"], ["gap_near", "gap_image"]])
@pytest.mark.parametrize("classes", [3, 13])
def test_what_can_be_told_apart_is_the_rank_of_the_jacobian(by_class, contexts, classes, randomise):
    calibrator = randomise(Conic(classes, by_class, contexts=contexts))
    count = 60 * classes
    logits, around = (
        logits_of(classes, count),
        4 * torch.rand(6, count, generator=torch.Generator().manual_seed(1)).double(),
    )
    features = calibrator.frame(logits.T, around).features.T
    blank = torch.zeros(count)
    design = calibrator._design(Block(features, blank.int(), blank, blank))
    centred = (design - design.mean(0)).movedim(1, 0).reshape(design.shape[1], -1)
    assert int(torch.linalg.matrix_rank(centred, rtol=1e-9)) == calibrator.num_identifiable()


def test_the_papers_procedure_leaves_it_to_the_exact_fit():
    cases = cases_of()
    fixed = {"lam": 1e-2, "nu": 1e-2}
    exact, paper = (fit("conic", cases, config=make(**fixed)).calibrator for make in (FitConfig, FitConfig.paper))
    assert torch.equal(exact.theta(), paper.theta())


def ensembles_of(count=5, members=3):
    rng = np.random.default_rng(1)
    base = 2 * rng.normal(size=(count, 3, 12, 13))
    truth = (0.4 * base + rng.gumbel(size=base.shape)).argmax(1)
    noisy = [[one + rng.normal(size=one.shape) for _ in range(members)] for one in base]
    return noisy, list(truth)


SEEING = ["disagreement", "share_near", "gap_image"]


def test_with_members_it_is_fitted_audited_and_measured_and_without_them_refused():
    logits, truth = ensembles_of()
    cases = ArrayCases(logits, truth, pooling="mean_logits", kind="logits")
    fitted = fit(make_calibrator("conic", 3, contexts=SEEING), cases, config=FitConfig(lam=1e-2, nu=1e-2))
    assert fitted.calibrator.sees_members
    assert audit(fitted, cases).passed
    assert evaluate(cases, fitted).after["flip_rate"].value == 0
    with pytest.raises(InputError, match="context has no disagreement, but this conic was fitted to see"):
        fitted.calibrator(cases.read("0").logits[None])
    pooled = ArrayCases([cases.read(name).logits for name in cases.ids], truth)
    with pytest.raises(InputError, match="case '0': context has no disagreement"):
        evaluate(pooled, fitted)


def test_a_case_without_members_among_others_is_named():
    logits, truth = ensembles_of()
    cases = ArrayCases([*logits[:4], np.mean(logits[4], 0)], truth, pooling="mean_logits", kind="logits")
    with pytest.raises(
        InputError, match="case '4': its disagreement is not known, but that of the first case is known"
    ):
        fit(make_calibrator("conic", 3, contexts=SEEING), cases)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(2, 9))
def test_knots_always_increase(values, count):
    found = quantile_knots(torch.tensor(values, dtype=torch.float64), np.linspace(0, 1, count).tolist(), -1e4)
    assert bool((found.diff() > 0).all())


def test_knots_without_values_start_above_what_they_must():
    assert quantile_knots(torch.zeros(0, dtype=torch.float64), [0.1, 0.9], 0.0).tolist() == [0.001, 0.002]


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20))
def test_hats_at_a_position_interpolate_and_continue_the_last_piece(values):
    knots, heights = np.array([0.0, 0.5, 2.0, 7.0]), np.array([0.0, 1.0, 1.5, 6.0, 9.0])
    where = positions(torch.tensor(values, dtype=torch.float64), torch.from_numpy(knots))
    found = torch.from_numpy(heights) @ hat_shares(where, 5)
    line = np.where(np.array(values) > 7, 6.0 + 3.0 * (np.array(values) - 7), np.interp(values, knots, heights[:4]))
    np.testing.assert_allclose(found.numpy(), line, rtol=0, atol=1e-9)


def test_few_of_many_voxels_are_kept_from_every_batch():
    batches = ((torch.full((4, 1 << 17), float(number)), None) for number in range(9))
    logits, context = some_voxels(batches)
    assert logits.numel() <= 1 << 20
    assert len(context) == 0
    counts = torch.bincount(logits[0].long())
    assert int(counts.min()) > 0
    assert int(counts.max()) < 2 * int(counts.min())
