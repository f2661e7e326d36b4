import numpy as np
import pytest
import torch

from segcal import ArrayCases, make_calibrator
from segcal.fitting import affine_problem
from segcal.fitting.affine_problem import AffineProblem, likelihood_hessian
from segcal.fitting.convex_problem import Strengths
from segcal.fitting.frames import Block, Frames
from segcal.fitting.voxels import StreamedVoxels

NAMES = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]
LAM, MU = 0.03, 0.2


def build(name, cases, randomise=None, cache=1 << 30):
    calibrator = make_calibrator(name, cases.num_classes)
    if randomise is not None:
        randomise(calibrator)
    source = StreamedVoxels(cases, lambda: None)
    frames = Frames(source, calibrator.frame, calibrator.num_experts, cache, torch.device("cpu"), centred=True)
    problem = AffineProblem(calibrator, frames, seed=0)
    problem.set_strengths(Strengths(LAM, MU))
    return calibrator, problem


def objective(calibrator, cases):
    """Mean NLL plus Eq. 15, through the calibrator itself."""
    logits = torch.cat([case.logits for case in cases], 1).T
    labels = torch.cat([case.labels for case in cases])
    return -calibrator(logits).gather(1, labels[:, None]).mean() + calibrator.penalty(LAM, MU)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cache", [1 << 30, 100])
def test_objective_and_gradient_are_those_of_the_calibrator(name, cache, make_cases, randomise):
    cases = make_cases(4, 300, parts=3)
    calibrator, problem = build(name, cases, randomise, cache)
    theta = problem.start()
    values, gradients = problem.evaluate(theta, problem.blocks)
    value = objective(calibrator, cases)
    value.backward()
    assert float(values.sum()) == pytest.approx(value.item(), rel=1e-12)
    rows = calibrator.weight.shape[-2]
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in calibrator.parameters()]
    weight, bias, gauge = (g if calibrator.weight.ndim == 3 else g[None] for g in grads)
    expected = torch.cat([torch.cat([weight, bias[..., None]], -1).flatten(1), gauge], 1)
    assert expected.shape[1] == rows * (calibrator.weight.shape[-1] + 1) + calibrator.gauge.shape[-1]
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_curvature_on_all_voxels_is_the_derivative_of_the_gradient(name, make_cases, randomise):
    _, problem = build(name, make_cases(3, 200), randomise)
    theta = problem.start()
    block = problem.blocks[0]
    curvature = problem.curvature(block, theta[block])
    for i in range(theta.shape[1]):
        step = torch.zeros_like(theta)
        step[block, i] = 1e-6
        ends = [problem.evaluate(theta + s * step, [block])[1][block] for s in (1, -1)]
        unit = torch.zeros(theta.shape[1], dtype=torch.float64)
        unit[i] = 1
        torch.testing.assert_close(curvature.product(unit), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_products_and_matrices_are_the_same_curvature_and_penalty(name, make_cases, randomise, monkeypatch):
    cases = make_cases(4, 300)
    _, dense = build(name, cases, randomise)
    monkeypatch.setattr(affine_problem, "LARGEST_MATRIX", 0)
    _, free = build(name, cases, randomise)
    theta = dense.start()
    vector = torch.as_tensor(np.random.default_rng(0).normal(size=theta.shape[1]))
    torch.testing.assert_close(free.penalty_product(vector), dense.penalty_product(vector), rtol=1e-10, atol=1e-12)
    for block in dense.blocks:
        matrix, products = dense.curvature(block, theta[block]), free.products(block, theta[block], fresh=True)
        torch.testing.assert_close(matrix.product(vector), products.multiply(vector), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cache", [1 << 30, 100])
def test_about_a_centre_everything_is_the_same_in_the_same_variables(cache, make_cases, randomise, monkeypatch):
    plain = make_cases(4, 300, parts=3)
    offset = torch.tensor([[500.0], [512.0], [0.0], [-700.0]])
    cases = ArrayCases([case.logits + offset for case in plain], [case.labels for case in plain])
    _, problem = build("ms", cases, randomise, cache)
    problem.set_strengths(Strengths(0.0, 0.0))
    assert problem._frames.centre.mean.abs().round(decimals=-2).tolist() == [500.0, 500.0, 0.0, 700.0]
    monkeypatch.setattr(affine_problem, "LARGEST_MATRIX", 0)
    theta, products = problem.start(), build("ms", cases, randomise, cache)[1]
    products.set_strengths(Strengths(0.0, 0.0))
    theta[0, 4::5] -= (theta[0].reshape(4, 5)[:, :4] @ offset.double())[
        :, 0
    ]  # so that probabilities are not all 0 or 1
    problem.write(theta)

    def nll(own):
        logits = torch.cat([case.logits for case in cases], 1).double()
        scores = own.reshape(4, 5)[:, :4] @ logits + own.reshape(4, 5)[:, 4:]
        return torch.nn.functional.cross_entropy(scores.T, torch.cat([case.labels for case in cases]))

    values, gradients = problem.evaluate(theta, [0])
    assert float(values[0]) == pytest.approx(float(nll(theta[0])), rel=1e-9)
    own = theta[0].clone().requires_grad_()
    torch.testing.assert_close(gradients[0], torch.autograd.grad(nll(own), own)[0], rtol=1e-7, atol=1e-7)
    if cache == 100:  # the Hessian is that of a few voxels
        return
    expected = torch.autograd.functional.hessian(nll, theta[0])
    vector = torch.as_tensor(np.random.default_rng(0).normal(size=20))
    for found in (problem.curvature(0, theta[0]).product, products.products(0, theta[0], fresh=True).multiply):
        torch.testing.assert_close(found(vector), expected @ vector, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["dc", "cms_ap"])
def test_the_preconditioner_is_symmetric_and_positive_and_kept_until_a_fresh_one_is_asked_for(
    name, make_cases, randomise, monkeypatch
):
    monkeypatch.setattr(affine_problem, "LARGEST_MATRIX", 0)
    _, problem = build(name, make_cases(4, 300), randomise)
    theta = problem.start()
    u, v = torch.as_tensor(np.random.default_rng(0).normal(size=(2, theta.shape[1])))
    old = problem.products(0, theta[0], fresh=False).precondition
    assert float(u @ old(v)) == pytest.approx(float(v @ old(u)), rel=1e-8)
    assert float(u @ old(u)) > 0
    kept = problem.products(0, 3 * theta[0], fresh=False).precondition
    torch.testing.assert_close(kept(u), old(u))
    assert not torch.allclose(problem.products(0, 3 * theta[0], fresh=True).precondition(u), old(u))


@pytest.mark.parametrize("outputs", ["scores", "drops", "stacked_drops"])
def test_the_hessian_in_steps_is_the_hessian_at_once(outputs, monkeypatch):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(np.abs(rng.normal(size=(3, 1000))))
    weight = torch.as_tensor(rng.random(1000))
    theta = torch.as_tensor(np.abs(rng.normal(size=(3, 4))))
    block = Block(x, torch.zeros(1000, dtype=torch.int32), weight, weight)
    whole = likelihood_hessian(block, theta, outputs)
    monkeypatch.setattr(affine_problem, "STEP_VALUES", 1)  # 256 voxels a step
    torch.testing.assert_close(likelihood_hessian(block, theta, outputs), whole, rtol=1e-12, atol=1e-10)


def test_variables_are_named_by_their_place(make_cases):
    _, problem = build("cms_ap", make_cases(3, 100))
    assert problem.names[:4] == ["weight[0, 0]", "weight[0, 1]", "bias[0]", "weight[1, 0]"]
    assert problem.names[-1] == "gauge[3]"
    assert len(problem.names) == len(problem.low) == len(problem.high) == problem.start().shape[1]


def test_the_gauge_is_free_and_the_rest_has_the_bounds_of_the_calibrator(make_cases):
    _, problem = build("cms_ap", make_cases(3, 100))
    assert problem.low.tolist() == [1e-3, 0, 0, 0, 1e-3, 0] + [-torch.inf] * 4
    assert problem.high.tolist() == [1e3] * 6 + [torch.inf] * 4


def test_what_the_first_approach_refines_stays_its_own(make_cases, monkeypatch):
    monkeypatch.setattr(affine_problem, "HESSIAN_WORK", 1)
    monkeypatch.setattr(affine_problem, "SMALLEST_SAMPLE_PER_VARIABLE", 1)
    _, problem = build("dc", make_cases(3, 2000))
    before = dict(problem._quotas), len(problem._samples[0].target)
    coarse = problem.coarse()
    coarse._quotas[0] = 1
    assert coarse.refine(0)
    assert (dict(problem._quotas), len(problem._samples[0].target)) == before
    assert problem.refine(0)
    assert len(problem._samples[0].target) > before[1]


def test_refining_ends_when_all_voxels_are_in_the_sample(make_cases, monkeypatch):
    monkeypatch.setattr(affine_problem, "HESSIAN_WORK", 1)
    monkeypatch.setattr(affine_problem, "SMALLEST_SAMPLE_PER_VARIABLE", 1)
    _, problem = build("dc", make_cases(3, 200))
    rounds = 0
    while problem.refine(0):
        rounds += 1
    assert rounds == 3  # 12, 48, 192, all
    assert len(problem._samples[0].target) == 200
