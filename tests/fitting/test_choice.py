import math
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch

from segcal import ArrayCases, make_calibrator
from segcal.errors import InputError
from segcal.fitting import FitConfig
from segcal.fitting.choice import candidates, case_nll, choose, choose_column
from segcal.fitting.fit import read_data

CONFIG = FitConfig(voxels=200, lam=1e-3, mu=1e-3)


def draw(count, temperature, seed, classes=3, shape=(9, 11), kind="logits", labels=True):
    """Cases whose labels follow the softmax of logits / temperature."""
    rng = np.random.default_rng(seed)
    logits = [4 * rng.normal(size=(classes, *shape)).astype("float32") for _ in range(count)]
    truth = [(z / temperature + rng.gumbel(size=z.shape)).argmax(0) for z in logits]
    ids = [f"s{seed}c{k}" for k in range(count)]
    return ArrayCases(logits, truth if labels else None, ids=ids, kind=kind)


def data(temperature, cal=4, val=5, **options):
    return read_data(draw(cal, temperature, 1, **options), draw(val, temperature, 2, **options), CONFIG)


def reference_nll(beta, case):
    scores = beta * case.logits.double().numpy()
    log_probs = scores - np.log(np.exp(scores).sum(0))
    return -np.take_along_axis(log_probs, case.labels.numpy()[None], 0).mean()


def test_the_best_is_taken_if_it_is_better_beyond_doubt():
    values = np.array([[2.0, 1.0], [2.1, 1.1], [1.9, 0.9]])
    assert choose_column(values, [0, 5])[0] == 1


def test_what_cannot_be_told_apart_is_decided_by_simplicity():
    values = np.array([[1.0, 1.2, 1.5], [1.2, 1.0, 1.6], [1.1, 1.08, 1.4]])
    assert choose_column(values, [4, 9, 0])[0] == 0
    assert choose_column(values, [9, 4, 0])[0] == 1


def test_with_one_row_the_best_column_wins():
    assert choose_column(np.array([[1.0, 0.999]]), [0, 100])[0] == 1


def test_differences_are_to_the_best_with_the_error_of_paired_ones():
    values = np.array([[1.0, 3.0], [2.0, 5.0], [4.0, 5.0]])
    _, differences, errors = choose_column(values, [1, 2])
    assert differences.tolist() == [0.0, 2.0]
    assert errors.tolist() == pytest.approx([0.0, 1 / math.sqrt(3)])


def test_the_comparison_is_that_of_the_cases_means():
    given = data(3.0)
    choice = choose(["identity", "ts"], given, CONFIG)
    beta = float(choice.candidates[1].fitted.calibrator.inverse_temperature.detach())
    columns = np.array([[reference_nll(b, case) for b in (1.0, beta)] for case in given.validation_cases])
    means = columns.mean(0)
    for row, mean in zip(choice.candidates, means, strict=True):
        assert row.validation_nll == pytest.approx(mean, rel=1e-6)
    gaps = columns[:, 0] - columns[:, 1]
    assert choice.candidates[0].difference == pytest.approx(gaps.mean(), rel=1e-5)
    assert choice.candidates[0].standard_error == pytest.approx(gaps.std(ddof=1) / math.sqrt(5), rel=1e-5)
    assert choice.candidates[1].standard_error == 0
    assert choice.chosen.name == "ts"


def test_overconfident_logits_need_a_temperature_and_no_more():
    assert choose(["identity", "ts", "dc"], data(3.0), CONFIG).chosen.name == "ts"


def test_honest_logits_are_left_alone():
    assert choose(["identity", "ts"], data(1.0), CONFIG).chosen.name == "identity"


def test_one_case_has_no_standard_error_so_the_best_wins():
    choice = choose(["identity", "ts", "dc"], data(3.0, val=1), CONFIG)
    assert choice.chosen.validation_nll == min(row.validation_nll for row in choice.candidates)
    assert all(row.standard_error == 0 for row in choice.candidates)


def test_the_saved_fit_tells_of_the_comparison():
    choice = choose(["identity", "ts"], data(3.0), CONFIG)
    details = choice.fitted.certificate.details
    assert details["chosen"] == "ts"
    assert [row["name"] for row in details["comparison"]] == ["identity", "ts"]
    assert [row["parameters"] for row in details["comparison"]] == [0, 1]
    assert choice.chosen.fitted.certificate.details.get("comparison") is None


def test_a_validation_case_without_labelled_voxels_counts_for_nobody():
    given = data(3.0, val=3)
    validation = given.validation_cases
    logits = [validation.read(case_id).logits for case_id in validation.ids]
    labels = [validation.read(case_id).labels for case_id in validation.ids]
    more = ArrayCases([*logits, logits[0]], [*labels, torch.full_like(labels[0], 9)], ignore=9)
    one = choose(["identity", "ts"], given, CONFIG)
    two = choose(["identity", "ts"], replace(given, validation_cases=more), CONFIG)
    assert [row.validation_nll for row in one.candidates] == [row.validation_nll for row in two.candidates]
    assert case_nll(make_calibrator("ts", 3), more.read("3")) is None


def test_a_choice_needs_validation_cases():
    with pytest.raises(InputError, match="there are no validation cases, but a choice among 2 calibrators needs them"):
        choose(["identity", "ts"], read_data(draw(2, 1.0, 1), None, CONFIG), CONFIG)


@pytest.mark.parametrize("name", ["identity", "ts", "ets", "vs", "ms", "dc", "cdc", "cms_ap", "cms_op"])
def test_the_nll_of_a_case_is_that_of_its_log_probabilities(name, randomise):
    case = draw(1, 2.0, 3, shape=(40, 17)).read("s3c0")
    calibrator = randomise(make_calibrator(name, 3), 4)
    with torch.no_grad():
        log_probs = calibrator(case.logits[None].double())[0]
    expected = -float(log_probs.gather(0, case.labels[None]).mean())
    assert case_nll(calibrator, case) == pytest.approx(expected, rel=1e-5)


def test_a_case_larger_than_one_step_is_measured_in_parts(monkeypatch):
    case = draw(1, 2.0, 3, shape=(40, 27)).read("s3c0")
    calibrator = make_calibrator("ts", 3)
    whole = case_nll(calibrator, case)
    monkeypatch.setattr("segcal.fitting.choice.STEP_VALUES", 900)
    assert case_nll(calibrator, case) == pytest.approx(whole, rel=1e-6)


def test_what_must_be_kept_decides_who_competes():
    assert candidates(4) == ["identity", "ts", "ets", "cms_ap", "cms_op"]
    assert candidates(4, "order") == ["identity", "ts", "ets", "cms_op"]
    assert not {"vs", "ms"} & set(candidates(4, "none"))
    assert {"vs", "ms", "dc"} <= set(candidates(4, "none", allow_offset_dependent=True))
    for name in candidates(4, "none"):
        assert make_calibrator(name, 4).translation_invariant
    with pytest.raises(InputError, match="preserve is 'mask', but it must be order, argmax or none"):
        candidates(4, "mask")


def test_what_cannot_fit_in_memory_is_no_candidate():
    """With 20,000 classes the parameters of cms_ap alone are 64 terabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert candidates(20_000) == ["identity", "ts", "ets"]
    assert candidates(20_000, "none", allow_offset_dependent=True)[:4] == ["identity", "ts", "ets", "vs"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kilobytes; torch loads some of its own for the first one that is built without values


def test_memory_decides_who_competes(monkeypatch):
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 108)
    assert "cms_ap" not in candidates(100)
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 110)
    assert "cms_ap" in candidates(100)
    with pytest.raises(InputError, match=r"cms_ap for 3000 classes needs 201\.2 GiB, but at most"):
        make_calibrator("cms_ap", 3000)
