"""The entry to fitting: degenerate data, and what cannot be fitted."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import segcal
from segcal import CALIBRATORS, ArrayCases, FitConfig, choose, fit, make_calibrator
from segcal.errors import InputError, SuspicionWarning
from segcal.fitting.request import read_data

NAMES = [name for name in CALIBRATORS if make_calibrator(name, 3).fitted_by in ("convex", "mixture", "nothing")]
CONDITIONAL = ["cdc", "cms_ap", "cms_op"]


def cases_of(logits, labels):
    return ArrayCases(logits=[logits], labels=[labels])


def plain(count=300, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(4, count))).astype(np.float32)
    return logits, (0.5 * logits * 3 / scale + rng.gumbel(size=logits.shape)).argmax(0)


DRAWN, HUGE, ZEROS = plain(), plain(scale=1e4), np.zeros((4, 200), np.float32)
ONE_VOXEL = np.array([[1.0], [3.0], [2.0], [0.0]], np.float32)
NEVER_PREDICTED = np.concatenate([DRAWN[0][:3], DRAWN[0][:3].min(0, keepdims=True) - 1]), DRAWN[1]
ALL_WRONG, SEPARABLE = (DRAWN[0], (DRAWN[0].argmax(0) + 1) % 4), (DRAWN[0], DRAWN[0].argmax(0))
ONE_CLASS, LARGE_OFFSET = (DRAWN[0], np.zeros(300, int)), (DRAWN[0] + np.float32(1e4), DRAWN[1])
DEGENERATE = {
    "one voxel": (ONE_VOXEL, np.array([1])),
    "one wrong voxel": (ONE_VOXEL, np.array([0])),
    "constant logits": (ZEROS, np.arange(200) % 4),
    "constant logits of one class": (ZEROS, np.zeros(200, int)),
    "one class": ONE_CLASS,
    "separable": SEPARABLE,
    "all wrong": ALL_WRONG,
    "absent label": (DRAWN[0], np.minimum(DRAWN[1], 2)),
    "never predicted": NEVER_PREDICTED,
    "huge logits": HUGE,
    "huge logits, all wrong": (HUGE[0], (HUGE[0].argmax(0) + 1) % 4),
    "tiny logits": plain(scale=1e-30),
    "large offset": LARGE_OFFSET,
}


def mean_nll(calibrator, logits, labels):
    with torch.no_grad():
        log_probs = calibrator(torch.as_tensor(logits.T).double())
    return -log_probs.gather(1, torch.as_tensor(labels)[:, None]).mean().item()


@pytest.mark.parametrize("data", DEGENERATE)
@pytest.mark.parametrize(
    ("name", "strength"), [*((name, 0.0) for name in NAMES), ("dc", 1e-4), ("cms_ap", 1e-4), ("conic_class", 1e-4)]
)
def test_degenerate_data_give_finite_parameters_and_an_honest_certificate(data, name, strength):
    logits, labels = DEGENERATE[data]
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=strength, mu=strength))
    certificate, calibrator = fitted.certificate, fitted.calibrator
    assert all(bool(torch.isfinite(p).all()) for p in calibrator.parameters())
    assert all(
        float(p.detach().abs().max()) <= 1e3 for n, p in calibrator.named_parameters() if n != "gauge" and p.numel()
    )
    assert np.isfinite(certificate.objective)
    assert certificate.converged == (certificate.kkt_residual <= 1e-6)
    # Without a penalty, features that are 0 for most voxels and 1e4 for some leave directions that double precision
    # cannot resolve; the certificate then says so.
    assert certificate.converged or (name, data, strength) == ("cdc", "huge logits", 0.0)
    # What it says about itself is what it does, and nothing is worse than leaving the logits alone.
    found = mean_nll(calibrator, logits, labels)
    assert certificate.nll == pytest.approx(found, abs=1e-5 * max(1.0, found))
    assert certificate.objective <= mean_nll(make_calibrator(name, 4), logits, labels) + 1e-6


@pytest.mark.parametrize("name", CONDITIONAL)
def test_a_class_that_is_never_predicted_keeps_the_identity_and_is_named(name):
    fitted = fit(name, cases_of(*NEVER_PREDICTED), config=FitConfig(lam=1e-3, mu=1e-3))
    new = make_calibrator(name, 4)
    assert fitted.certificate.untouched == (3,)
    for found, identity in zip(fitted.calibrator.parameters(), new.parameters(), strict=True):
        assert torch.equal(found[3], identity[3])
    assert not torch.equal(fitted.calibrator.weight[0], new.weight[0])


@pytest.mark.parametrize("name", CONDITIONAL)
def test_where_the_penalty_leads_to_a_temperature_so_does_a_class_that_is_never_predicted(name):
    fitted = fit(name, cases_of(*NEVER_PREDICTED))
    beta = fit("ts", cases_of(*NEVER_PREDICTED)).calibrator.inverse_temperature
    torch.testing.assert_close(fitted.calibrator.weight[3], beta * make_calibrator(name, 4).weight[3].detach())


@pytest.mark.parametrize("name", ["cdc", "cms_ap", "dc"])
def test_data_without_errors_are_named_as_separable(name):
    certificate = fit(name, cases_of(*SEPARABLE), config=FitConfig(lam=0.0, mu=0.0)).certificate
    assert certificate.separable == ((0, 1, 2, 3) if name != "dc" else (0,))


def test_a_temperature_that_runs_into_its_bound_is_named():
    certificate = fit("ts", cases_of(*ALL_WRONG)).certificate
    assert certificate.active_bounds == ("inverse_temperature = 0.001",)
    assert certificate.converged


@pytest.mark.parametrize("name", ["cms_ap", "cms_op"])
@pytest.mark.parametrize("precision", [0.0, 0.35])
def test_an_expert_that_is_right_less_than_half_of_the_time_keeps_its_mask(name, precision):
    """Without the floor on the diagonal its gaps would shrink to zero, and the ties would give its voxels away."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 400)).astype(np.float32)
    predicted = logits.argmax(0)
    labels = np.where(rng.random(400) < precision, predicted, 1 - predicted)
    fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=0.0, mu=0.0))
    assert fitted.certificate.active_bounds == ("expert 0: weight[0, 0] = 0.001", "expert 1: weight[0, 0] = 0.001")
    with torch.no_grad():
        scores = fitted.calibrator.scores(torch.as_tensor(logits.T))
    assert np.array_equal(scores.argmax(1).numpy(), predicted)
    assert bool((scores[:, 0] != scores[:, 1]).all())


@pytest.mark.parametrize("name", ["cms_ap", "ets"])
def test_no_fit_of_an_order_keeping_calibrator_changes_a_mask(name):
    for logits, labels in (DRAWN, ALL_WRONG, ONE_CLASS, HUGE, LARGE_OFFSET):
        fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=0.0, mu=0.0)).calibrator
        voxels = torch.as_tensor(logits.T)
        with torch.no_grad():
            scores = fitted.scores(voxels)
        own = scores.gather(1, voxels.argmax(1, keepdim=True))[:, 0]
        assert bool((own >= scores.amax(1)).all())


def test_the_result_remembers_where_it_came_from(make_data):
    logits, labels = make_data(3, 200)
    known = ArrayCases(
        logits=[logits, logits + 1],
        labels=[labels] * 2,
        ids=["a", "b"],
        class_names=["x", "y", "z"],
        pooling="mean_logits",
    )
    fitted = fit("ts", known.subset(["a"]), validation=known.subset(["b"]))
    assert (fitted.calibration_ids, fitted.validation_ids) == (("a",), ("b",))
    assert (fitted.pooling, fitted.kind, fitted.class_names) == ("mean_logits", "logits", ("x", "y", "z"))
    assert fitted.fingerprint == known.subset(["a"]).fingerprint()


@pytest.mark.parametrize("name", ["ts", "cms_ap", "iop"])
def test_what_a_fitted_calibrator_returns_needs_no_detaching_and_a_fit_can_go_on_from_it(name, make_cases):
    config = FitConfig(max_steps=3)
    cases = make_cases(3, 300)
    fitted = fit(name, cases, config=config)
    logits = next(iter(cases)).logits[None]
    assert not fitted.calibrator(logits).requires_grad
    assert fitted.calibrator(logits.clone().requires_grad_()).requires_grad  # gradients in the input are to be had
    again = fit(fitted.calibrator, cases, config=config)
    assert again.certificate.nll <= fitted.certificate.nll + 1e-6


@pytest.mark.parametrize("name", ["ts", "ets", "cms_op", "conic"])
def test_counts_of_voxels_are_given(name, make_cases):
    cases = make_cases(3, 600, parts=2)
    certificate = fit(name, cases, config=FitConfig(voxels=100)).certificate
    assert certificate.voxels <= 200
    assert certificate.voxels_available == 600
    assert fit(name, cases, config=FitConfig(voxels="all")).certificate.voxels == 600


LOGITS = np.zeros((3, 4, 5), np.float32)
LABELS = np.zeros((4, 5), int)


class Unreadable(ArrayCases):
    """Fails the test if anything is read."""

    def read(self, case_id):
        pytest.fail("a case was read before the arguments were checked")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name_or_calibrator": "cms"}, r"no calibrator is named 'cms'. Choose one of: identity, ts, ets"),
        ({"name_or_calibrator": 3}, "name_or_calibrator is 3, but text or a Calibrator is needed"),
        ({"name_or_calibrator": make_calibrator("ts", 5)}, "the calibrator has 5 classes, but the cases have 3"),
        ({"device": "cuda:7"}, "device is 'cuda:7', but no CUDA device is available. Use device='cpu'"),
        ({"device": "gpu"}, "device is 'gpu', but a device of torch is needed. Use 'cpu' or 'cuda'"),
        (
            {"validation": ArrayCases(logits=[LOGITS[:2]], labels=[LABELS])},
            "validation has 2 classes, but the calibration cases have 3. Both must come from one model",
        ),
    ],
)
def test_arguments_are_checked_before_anything_is_read(arguments, text):
    if "device" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    call = {"name_or_calibrator": "ts", "cases": Unreadable(logits=[LOGITS], labels=[LABELS])} | arguments
    with pytest.raises(InputError, match=text):
        fit(**call)


def test_empty_sets_are_refused():
    cases = ArrayCases(logits=[LOGITS], labels=[LABELS])
    with pytest.raises(InputError, match=r"cases is empty, but at least one case is needed. Check the split"):
        fit("ts", cases.subset([]))
    with pytest.raises(InputError, match=r"validation is empty, but at least one case is needed. Pass None to fit"):
        fit("ts", cases, validation=cases.subset([]))


@pytest.mark.parametrize("name", ["ms", "vs"])
def test_a_calibrator_that_needs_the_offset_is_refused_where_it_is_lost(name):
    probs = np.full((3, 20), 1 / 3, np.float32)
    with pytest.raises(
        InputError, match=f"calibrator '{name}' depends on the offset of the logits, but kind is 'probs'"
    ):
        fit(name, ArrayCases(logits=[probs], labels=[np.arange(20) % 3], kind="probs"))


def test_a_fit_warns_at_the_line_that_called_it(scenes):
    drawn = scenes(4)
    cases = segcal.ArrayCases([z for z, _ in drawn], [y[:, ::-1].copy() for _, y in drawn])
    with pytest.warns(segcal.SuspicionWarning, match=r"labels fit clearly better as numpy\.flip\(labels, 1\)") as said:
        segcal.fit("ts", cases)
    assert [one.filename for one in said] == [__file__]


def test_where_the_predictions_came_from_is_remembered(scenes, tmp_path):
    drawn = scenes(2)
    cases = segcal.ArrayCases([z for z, _ in drawn], [y for _, y in drawn])
    cases.origin = "single folds"
    with pytest.warns(segcal.SuspicionWarning, match="each case is predicted by the network of one fold"):
        fitted = segcal.fit("ts", cases)
    segcal.save(fitted, tmp_path / "cal")
    assert segcal.load(tmp_path / "cal").origin == fitted.origin == "single folds"


def test_two_processes_that_go_through_all_voxels_end_where_one_does():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(3, 3, 170, 140)).astype("float32")
    labels = (3 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    config = FitConfig(voxels="all", lam=1e-3, mu=1e-3, memory=1 << 20)  # too little to keep them
    one, two = (fit("cms_ap", logits, labels, config, workers=workers) for workers in (1, 2))
    assert one.certificate == two.certificate
    for own, other in zip(one.calibrator.parameters(), two.calibrator.parameters(), strict=True):
        assert own.numpy().tobytes() == other.numpy().tobytes()


def test_more_cases_share_the_memory_that_is_allowed(make_cases):
    config = FitConfig(voxels=100_000, memory=1 << 20)
    room = (1 << 20) // (4 * (3 + 2))
    data = read_data(make_cases(3, 120_000, parts=3), None, config)
    assert data.source.available == 120_000
    assert (
        room - 30 <= data.source.used <= room + 3
    )  # systematic drawing is exact to one voxel a case, clamping loses few


def test_progress_counts_cases(make_cases):
    messages = []
    read_data(make_cases(2, 40, parts=2), make_cases(2, 30, seed=1), FitConfig(), messages.append)
    assert messages == ["read 1 of 2 cases", "read 2 of 2 cases", "read 1 of 1 cases"]


def test_what_is_seldom_meant_is_said_where_it_is_asked_for(scenes):
    drawn = scenes(6)
    logits, labels = [z for z, _ in drawn], [y[::-1].copy() for _, y in drawn]
    cases = ArrayCases([[z, z] for z in logits], labels, pooling="mean_logits")
    read_data(cases, None, FitConfig())
    with pytest.warns(SuspicionWarning) as said:
        read_data(cases.subset([*"0123"]), cases.subset([*"45"]), FitConfig(), suspect=True)
    texts = [str(one.message) for one in said]
    assert [text.split(" (")[0] for text in texts] == [
        "0, 1, 2, 3, 4 and 1 more: labels fit clearly better as numpy.flip(labels, 0)",
        "members hold the same scores",
    ]


@pytest.mark.parametrize("voxels", [500, "all"])
def test_copies_in_calibration_and_validation_are_known_by_content(scenes, voxels):
    drawn = scenes(4)
    cal, val = (ArrayCases([drawn[i][0] for i in part], [drawn[i][1] for i in part]) for part in ((0, 1, 2), (3, 1)))
    match = r"the same scores are in calibration and in validation \(1 = 1\)"
    with pytest.warns(SuspicionWarning, match=match) as said:
        read_data(cal, val, FitConfig(voxels=voxels), suspect=True)
    assert len(said) == 1
    read_data(cal, cal, FitConfig(voxels=voxels), suspect=True)


def drawn(cases=6, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(cases, 3, 9, 11)).astype("float32")
    return logits, (2 * logits + rng.gumbel(size=logits.shape)).argmax(1)


@pytest.mark.parametrize(
    "how",
    {
        "arrays": lambda z, y: fit("ts", z, y),
        "tensors with gradients": lambda z, y: fit("ts", torch.tensor(z, requires_grad=True), torch.tensor(y)),
        "lists": lambda z, y: fit("ts", list(z), list(y)),
        "a generator": lambda z, y: fit("ts", ((z[i : i + 2], y[i : i + 2]) for i in range(0, 6, 2))),
        "a loader": lambda z, y: fit("ts", DataLoader(TensorDataset(torch.tensor(z), torch.tensor(y)), batch_size=4)),
        "a network": lambda z, y: fit("ts", [(z / 2, y)], model=Doubling()),
        "an inferer": lambda z, y: fit("ts", [(z, y)], model=Doubling(), inferer=lambda x, net: net(x) / 2),
        "probabilities": lambda z, y: fit("ts", torch.softmax(torch.tensor(z).double(), 1), y, kind="probs"),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_in_memory_is_fitted_as_cases_are(how):
    logits, labels = drawn()
    expected = fit("ts", ArrayCases(list(logits), list(labels))).calibrator.temperature
    assert how[1](logits, labels).calibrator.temperature == pytest.approx(expected, rel=1e-5)


class Doubling(torch.nn.Module):
    def forward(self, images):
        return 2 * images


def test_validation_is_a_pair_a_loader_or_cases_also_in_the_place_of_labels():
    (logits, labels), held = drawn(), drawn(3, seed=1)
    cases, own = ArrayCases(list(logits), list(labels)), ArrayCases(list(held[0]), list(held[1]))
    found = [
        fit("cms_ap", logits, labels, validation=held),
        fit("cms_ap", logits, labels, validation=[held]),
        fit("cms_ap", cases, own),
        fit("cms_ap", cases, validation=own),
    ]
    assert len({fitted.certificate.validation_nll for fitted in found}) == 1
    assert {fitted.validation_ids for fitted in found} == {("0", "1", "2")}
    assert choose(logits, labels, validation=held).validation_ids == ("0", "1", "2")
    with pytest.raises(InputError, match=r"labels is a collection of cases, but validation is given too"):
        fit("ts", cases, own, validation=own)


def test_what_holds_no_scores_is_refused():
    with pytest.raises(InputError, match=r"data is 'predictions/', but arrays, a list, a loader or cases are needed"):
        fit("ts", "predictions/")
