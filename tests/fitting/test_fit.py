"""The entry to fitting: degenerate data, and what cannot be fitted."""

import numpy as np
import pytest
import torch

import segcal
from segcal import CALIBRATORS, ArrayCases, Calibrator, FitConfig, fit, make_calibrator
from segcal.errors import InputError
from segcal.fitting import METHODS

NAMES = [name for name in CALIBRATORS if make_calibrator(name, 3).fitted_by in ("convex", "mixture", "nothing")]
CONDITIONAL = ["cdc", "cms_ap", "cms_op"]


def cases_of(logits, labels):
    return ArrayCases(logits=[logits], labels=[labels])


def one_voxel():
    return np.array([[1.0], [3.0], [2.0], [0.0]], np.float32), np.array([1])


def one_wrong_voxel():
    return np.array([[1.0], [3.0], [2.0], [0.0]], np.float32), np.array([0])


def plain(count=300, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(4, count))).astype(np.float32)
    return logits, (0.5 * logits * 3 / scale + rng.gumbel(size=logits.shape)).argmax(0)


def constant_logits():
    return np.zeros((4, 200), np.float32), np.arange(200) % 4


def constant_logits_of_one_class():
    return np.zeros((4, 200), np.float32), np.zeros(200, int)


def one_class():
    return plain()[0], np.zeros(300, int)


def separable():
    logits, _ = plain()
    return logits, logits.argmax(0)


def all_wrong():
    logits, _ = plain()
    return logits, (logits.argmax(0) + 1) % 4


def absent_label():
    logits, labels = plain()
    return logits, np.minimum(labels, 2)


def never_predicted():
    logits, labels = plain()
    logits[3] = logits.min(0) - 1
    return logits, labels


def huge_logits():
    return plain(scale=1e4)


def huge_logits_all_wrong():
    logits, _ = plain(scale=1e4)
    return logits, (logits.argmax(0) + 1) % 4


def tiny_logits():
    return plain(scale=1e-30)


def large_offset():
    logits, labels = plain()
    return logits + 1e4, labels


DEGENERATE = [
    one_voxel,
    one_wrong_voxel,
    constant_logits,
    constant_logits_of_one_class,
    one_class,
    separable,
    all_wrong,
    absent_label,
    never_predicted,
    huge_logits,
    huge_logits_all_wrong,
    tiny_logits,
    large_offset,
]


def mean_nll(calibrator, logits, labels):
    with torch.no_grad():
        log_probs = calibrator(torch.as_tensor(logits.T).double())
    return -log_probs.gather(1, torch.as_tensor(labels)[:, None]).mean().item()


@pytest.mark.parametrize("data", DEGENERATE)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strength", [0.0, 1e-4])
def test_degenerate_data_give_finite_parameters_and_an_honest_certificate(data, name, strength):
    logits, labels = data()
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
    assert certificate.converged or (name, data, strength) == ("cdc", huge_logits, 0.0)
    # What it says about itself is what it does, and nothing is worse than leaving the logits alone.
    found = mean_nll(calibrator, logits, labels)
    assert certificate.nll == pytest.approx(found, abs=1e-5 * max(1.0, found))
    assert certificate.objective <= mean_nll(make_calibrator(name, 4), logits, labels) + 1e-6


@pytest.mark.parametrize("name", CONDITIONAL)
def test_a_class_that_is_never_predicted_keeps_the_identity_and_is_named(name):
    fitted = fit(name, cases_of(*never_predicted()), config=FitConfig(lam=1e-3, mu=1e-3))
    new = make_calibrator(name, 4)
    assert fitted.certificate.untouched == (3,)
    for found, identity in zip(fitted.calibrator.parameters(), new.parameters(), strict=True):
        assert torch.equal(found[3], identity[3])
    assert not torch.equal(fitted.calibrator.weight[0], new.weight[0])


@pytest.mark.parametrize("name", CONDITIONAL)
def test_where_the_penalty_leads_to_a_temperature_so_does_a_class_that_is_never_predicted(name):
    fitted = fit(name, cases_of(*never_predicted()))
    beta = fit("ts", cases_of(*never_predicted())).calibrator.inverse_temperature
    torch.testing.assert_close(fitted.calibrator.weight[3], beta * make_calibrator(name, 4).weight[3].detach())


@pytest.mark.parametrize("name", ["cdc", "cms_ap", "dc"])
def test_data_without_errors_are_named_as_separable(name):
    certificate = fit(name, cases_of(*separable()), config=FitConfig(lam=0.0, mu=0.0)).certificate
    assert certificate.separable == ((0, 1, 2, 3) if name != "dc" else (0,))


def test_a_temperature_that_runs_into_its_bound_is_named():
    certificate = fit("ts", cases_of(*all_wrong())).certificate
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


@pytest.mark.parametrize("name", ["cms_ap", "cms_op", "ts", "ets"])
def test_no_fit_of_an_order_keeping_calibrator_changes_a_mask(name):
    for data in (plain, all_wrong, one_class, huge_logits, large_offset):
        logits, labels = data()
        fitted = fit(name, cases_of(logits, labels), config=FitConfig(lam=0.0, mu=0.0)).calibrator
        voxels = torch.as_tensor(logits.T)
        with torch.no_grad():
            scores = fitted.scores(voxels)
        own = scores.gather(1, voxels.argmax(1, keepdim=True))[:, 0]
        assert bool((own >= scores.amax(1)).all())


def test_every_calibrator_declares_a_method_that_exists():
    for name in CALIBRATORS:
        assert make_calibrator(name, 3).fitted_by in METHODS


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


def test_an_object_is_the_start_and_is_not_changed(make_cases):
    calibrator = make_calibrator("dc", 3)
    fitted = fit(calibrator, make_cases(3, 300))
    assert torch.equal(calibrator.weight, torch.eye(3, dtype=torch.float64))
    assert not torch.equal(fitted.calibrator.weight, calibrator.weight)


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


def test_a_calibrator_without_parameters_is_only_measured(make_data):
    logits, labels = make_data(3, 300)
    certificate = fit("identity", cases_of(logits, labels)).certificate
    assert certificate.objective == pytest.approx(mean_nll(make_calibrator("identity", 3), logits, labels))
    assert (certificate.method, certificate.kkt_residual, certificate.passes) == ("nothing", 0.0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_voxels_are_given(name, make_cases):
    cases = make_cases(3, 600, parts=2)
    certificate = fit(name, cases, config=FitConfig(voxels=100)).certificate
    assert certificate.voxels <= 200
    assert certificate.voxels_available == 600
    assert fit(name, cases, config=FitConfig(voxels="all")).certificate.voxels == 600


LOGITS = np.zeros((3, 4, 5), np.float32)
LABELS = np.zeros((4, 5), int)


def with_value(array, value, dtype=None):
    changed = array.astype(dtype or array.dtype)
    changed[(0,) * array.ndim] = value
    return changed


@pytest.mark.parametrize(
    ("logits", "labels", "text"),
    [
        (
            with_value(LOGITS, np.nan),
            LABELS,
            "logits of case '0' has 1 values that are NaN or infinite, but all must be",
        ),
        (with_value(LOGITS, np.inf), LABELS, "logits of case '0' has 1 values that are NaN or infinite"),
        (with_value(LOGITS, -np.inf), LABELS, "Zero probabilities give -inf: declare kind='probs' instead of taking"),
        (LOGITS.astype(int), LABELS, "logits of case '0' has dtype int64, but floating-point values are needed"),
        (LOGITS, with_value(LABELS, 3), r"labels of case '0' contains 3, but there are 3 classes \(0 to 2\)"),
        (LOGITS, with_value(LABELS, -1), r"labels of case '0' contains -1, but there are 3 classes \(0 to 2\)"),
        (LOGITS, LABELS.astype(np.float32), "labels of case '0' has dtype float32, but whole numbers are needed"),
        (
            LOGITS,
            LABELS[:3],
            r"labels of case '0' has space \(3, 5\), but its logits have \(4, 5\). Save logits at label",
        ),
        (LOGITS, LABELS.T, r"has space \(5, 4\), but its logits have \(4, 5\). The axes are in another order"),
        (
            np.moveaxis(LOGITS, 0, -1),
            LABELS,
            r"labels of case '0' has space \(4, 5\), .* If classes are the last axis, move",
        ),
        (
            LOGITS[:1],
            LABELS,
            r"logits of case '0' has shape \(1, 4, 5\), but \(classes, \*space\) with at least 2 classes",
        ),
    ],
)
def test_cases_that_cannot_be_fitted_to_are_refused(logits, labels, text):
    with pytest.raises(InputError, match=text):
        fit("ts", ArrayCases(logits=[logits], labels=[labels]))


def test_cases_with_other_classes_are_refused_by_name():
    cases = ArrayCases(logits=[LOGITS, LOGITS[:2]], labels=[LABELS, LABELS])
    with pytest.raises(
        InputError, match=r"logits of case '1' has shape \(2, 4, 5\), but \(3, \*space\) like the cases"
    ):
        fit("ts", cases)


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


def test_pooled_probabilities_have_lost_the_offset_too():
    cases = ArrayCases(logits=[LOGITS], labels=[LABELS], pooling="mean_probs")
    with pytest.raises(InputError, match="but pooling is 'mean_probs', so the offset is gone"):
        fit("ms", cases)


@pytest.mark.parametrize("name", ["ms", "vs"])
def test_a_calibrator_that_needs_the_offset_is_refused_where_it_is_lost(name):
    probs = np.full((3, 20), 1 / 3, np.float32)
    with pytest.raises(
        InputError, match=f"calibrator '{name}' depends on the offset of the logits, but kind is 'probs'"
    ):
        fit(name, ArrayCases(logits=[probs], labels=[np.arange(20) % 3], kind="probs"))


def test_a_users_own_calibrator_is_fitted_as_it_declares(make_cases):
    class Half(Calibrator):
        translation_invariant, preserves, fitted_by = True, "order", "nothing"

        def scores(self, logits, context=None):
            return logits / 2

        def num_identifiable(self):
            return 0

    assert fit(Half(3), make_cases(3, 100)).certificate.method == "nothing"


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


@pytest.mark.parametrize("name", ["ts", "cms_ap"])
def test_two_processes_that_go_through_all_voxels_end_where_one_does(name):
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(5, 3, 170, 140)).astype("float32")
    labels = (3 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    config = FitConfig(voxels="all", lam=1e-3, mu=1e-3, memory=1 << 20)  # too little to keep them
    one, two = (fit(name, logits, labels, config, workers=workers) for workers in (1, 2))
    assert one.certificate == two.certificate
    for own, other in zip(one.calibrator.parameters(), two.calibrator.parameters(), strict=True):
        assert own.numpy().tobytes() == other.numpy().tobytes()
