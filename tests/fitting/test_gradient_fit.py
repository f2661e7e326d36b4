import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, InputError, fit, make_calibrator
from segcal.fitting.gradient_fit import is_new

NAMES = ["lts", "lts_ti", "ibts", "pts", "iop"]
SHORT = FitConfig(max_steps=3, voxels=2000, learning_rate=3e-3)


def images(count, seed=0, classes=3, space=(30, 26), ids=None, channels=0):
    """Images in which the left half is far too sure of itself; the first class tells where that is."""
    rng = np.random.default_rng(seed)
    logits, labels, pictures = [], [], []
    for _ in range(count):
        scores = 3 * rng.normal(size=(classes, *space)).astype("float32")
        left = np.arange(space[-1]) < space[-1] // 2
        scores[0] += 3 * left
        labels.append((scores / np.where(left, 4.0, 1.0) + rng.gumbel(size=scores.shape)).argmax(0))
        logits.append(scores)
        pictures.append(np.broadcast_to(200 * left, (channels, *space)).astype("float32"))
    return ArrayCases(logits, labels, ids=ids, images=pictures if channels else None)


def mean_nll(calibrator, cases):
    total = count = 0.0
    with torch.no_grad():
        for case in cases:
            own = calibrator(case.logits[None], case.context)[0].double()
            total -= float(own.gather(0, case.labels[None]).sum())
            count += case.labels.numel()
    return total / count


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_lowers_the_nll_of_cases_it_has_not_seen(name):
    fitted = fit(name, images(3), validation=images(2, seed=1), config=FitConfig(max_steps=30, learning_rate=1e-2))
    test = images(2, seed=2)
    before = mean_nll(make_calibrator("identity", 3), test)
    assert mean_nll(fitted.calibrator, test) < before - 0.1
    certificate = fitted.certificate
    assert (certificate.method, certificate.kkt_residual) == ("gradient", None)
    assert certificate.validation_nll == min(certificate.curve) <= certificate.curve[0]
    assert certificate.passes == len(certificate.curve) - 1
    assert certificate.voxels_available == 3 * 30 * 26
    assert "held_back" not in certificate.details


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.05, 900.0])
def test_each_can_be_temperature_scaling(name, temperature, randomise):
    calibrator, scaling = randomise(make_calibrator(name, 3)), make_calibrator("ts", 3)
    calibrator.become_temperature(temperature)
    with torch.no_grad():
        scaling.inverse_temperature.fill_(1 / temperature)
        logits = 5 * torch.randn(1, 3, 12, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(calibrator(logits), scaling(logits), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["ibts", "iop"])
def test_a_fit_starts_at_temperature_scaling_and_never_ends_worse(name):
    """With a learning rate this large nothing is learned: the start is what comes back, and the certificate says so."""
    cal, val = images(3), images(2, seed=1)
    certificate = (
        fitted := fit(name, cal, validation=val, config=FitConfig(max_steps=3, learning_rate=1e3))
    ).certificate
    scaling = fit("ts", cal)
    assert certificate.details["start"] == certificate.details["returned"] == "ts"
    temperature = 1 / float(scaling.calibrator.inverse_temperature)
    assert certificate.details["temperature"] == pytest.approx(temperature, rel=1e-5)
    assert certificate.validation_nll == certificate.curve[0] == certificate.details["ts_validation_nll"]
    test = images(2, seed=2)
    assert mean_nll(fitted.calibrator, test) == pytest.approx(mean_nll(scaling.calibrator, test), rel=1e-5)


def test_a_given_start_is_kept_unless_temperature_scaling_is_better():
    cal, val = images(3), images(2, seed=1)
    first = fit("lts_ti", cal, validation=val, config=FitConfig(max_steps=20, learning_rate=1e-2))
    assert (first.certificate.details["start"], first.certificate.details["returned"]) == ("ts", "trained")
    again = fit(first.calibrator, cal, validation=val, config=FitConfig(max_steps=1))
    assert again.certificate.details["start"] == "given"
    assert again.certificate.curve[0] == first.certificate.validation_nll
    bad = make_calibrator("lts_ti", 3)
    bad.become_temperature(50.0)
    found = fit(bad, cal, validation=val, config=FitConfig(max_steps=1)).certificate
    assert (found.details["start"], found.details["returned"]) == ("given", "ts")
    assert found.validation_nll == found.details["ts_validation_nll"] < min(found.curve)


def test_an_image_branch_sees_the_image():
    """The logits do not tell where they are too sure; the image does."""
    parts = []
    for count, seed in ((3, 0), (2, 1)):
        cases = images(count, seed, channels=1)
        for case_id in cases.ids:
            cases._raw[case_id].logits[0] -= 3 * (np.arange(26) < 13)
        parts.append(cases)
    config = FitConfig(max_steps=25, learning_rate=1e-2)
    seen = fit(make_calibrator("lts_ti", 3, image_channels=1), parts[0], validation=parts[1], config=config)
    blind = fit("lts_ti", parts[0], validation=parts[1], config=config)
    assert seen.certificate.validation_nll < blind.certificate.validation_nll - 0.02
    assert mean_nll(seen.calibrator, parts[1]) == pytest.approx(seen.certificate.validation_nll, rel=0.05)
    assert 50 < float(seen.calibrator.tree.image_centre) < 150


@pytest.mark.parametrize("name", ["lts_ti", "iop"])
def test_the_same_seed_gives_the_same_result_and_another_another(name):
    cal, val = images(6), images(2, seed=1)
    first, same, other = (
        fit(name, cal, validation=val, config=FitConfig(max_steps=4, voxels=300, seed=seed)) for seed in (0, 0, 1)
    )
    assert first.certificate == same.certificate
    for key, value in first.calibrator.state_dict().items():
        assert torch.equal(value, same.calibrator.state_dict()[key])
    assert first.certificate.curve != other.certificate.curve


class StopError(Exception):
    """Raised where a kill is played."""


@pytest.mark.parametrize("name", ["lts_ti", "pts"])
def test_a_fit_that_was_killed_goes_on_to_the_identical_result(name, tmp_path, monkeypatch):
    cal, val = images(5), images(2, seed=1)
    options = {"max_steps": 8, "voxels": 500, "patience": 3, "learning_rate": 3e-3}
    whole = fit(name, cal, validation=val, config=FitConfig(**options))
    config = FitConfig(**options, checkpoint=str(tmp_path / "state"))
    from segcal.fitting import adam

    save, saved = adam.FileKeeper.save, []

    def save_and_stop(self, state):
        save(self, state)
        saved.append(state)
        if len(saved) == 2:
            raise StopError

    monkeypatch.setattr(adam.FileKeeper, "save", save_and_stop)
    with pytest.raises(StopError):
        fit(name, cal, validation=val, config=config)
    resumed = fit(name, cal, validation=val, config=config)
    assert len(saved) == len(whole.certificate.curve) - 1
    assert resumed.certificate == whole.certificate
    for key, value in whole.calibrator.state_dict().items():
        assert torch.equal(value, resumed.calibrator.state_dict()[key])
    with pytest.raises(InputError, match="belongs to a fit with another set of calibration cases"):
        fit(name, images(5, ids=list("abcde")), validation=val, config=config)


@pytest.mark.parametrize("name", ["pts"])
def test_the_papers_search_tries_weight_decay(name):
    pytest.importorskip("optuna")
    config = FitConfig.paper(trials=3, max_steps=4, voxels=300)
    certificate = fit(name, images(4), validation=images(2, seed=1), config=config).certificate
    assert len(certificate.path) == 3
    assert {"learning_rate", "weight_decay", "validation_nll"} == set(certificate.path[0])
    assert certificate.validation_nll == min(trial["validation_nll"] for trial in certificate.path)
    assert 1e-4 <= certificate.details["learning_rate"] <= 3e-2
    assert "returned" not in certificate.details  # its trials start at the identity, as published


def test_weight_decay_is_part_of_the_objective_and_shrinks_weights():
    cal, val = images(4), images(2, seed=1)
    free, tied = (
        fit("lts_ti", cal, validation=val, config=FitConfig(max_steps=6, voxels=900, weight_decay=decay))
        for decay in (0.0, 1.0)
    )
    squares = [float(each.calibrator.tree.weight.detach().square().sum()) for each in (free, tied)]
    assert squares[1] < squares[0]
    assert tied.certificate.objective == pytest.approx(tied.certificate.nll + squares[1] / 2)
    assert free.certificate.objective == free.certificate.nll


def test_progress_tells_the_validation_nll():
    messages = []
    config = FitConfig(max_steps=2, voxels=300)
    certificate = fit("lts_ti", images(2), validation=images(1, 1), config=config, progress=messages.append).certificate
    assert f"lts_ti: round 1 of at most 2: validation NLL {certificate.curve[1]:.5f}" in messages


@pytest.mark.parametrize("name", ["lts_ti", "ibts"])
def test_volumes_and_single_slices_are_fitted(name):
    for space in ((3, 20, 18), (1, 12, 14), (4, 3)):
        fitted = fit(name, images(3, space=space), validation=images(2, seed=1, space=space), config=SHORT)
        assert fitted.certificate.validation_nll <= fitted.certificate.curve[0]


@pytest.mark.parametrize("name", ["identity", "ts", "conic", "lts_ti", "selective", "isotonic"])
def test_what_was_made_is_new_until_it_is_changed(name, randomise):
    assert is_new(make_calibrator(name, 3))
    if make_calibrator(name, 3).num_parameters():
        assert not is_new(randomise(make_calibrator(name, 3)))
