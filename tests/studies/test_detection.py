"""Detection rates: ends of the curve by hand, and the learned selector from plain counts."""

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.cases import ArrayCases
from segcal.studies.detection import RATES, DetectionData, DetectionTask, judge_selector, oracle_curves


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(1)
    logits = [3 * rng.normal(size=(4, 11, 13)) for _ in range(3)]
    labels = [np.where(rng.random((11, 13)) < 0.3, rng.integers(4, size=(11, 13)), z.argmax(0)) for z in logits]
    labels[0][:2] = 255
    return ArrayCases(logits, labels, ignore=255)


def error(confidence, right):
    bins = np.ceil(confidence * 50)
    return sum(abs((confidence - right)[bins == b].sum()) for b in range(1, 51)) / len(right)


def voxels(cases):
    for case in cases:
        z, y = case.logits.numpy().reshape(4, -1), case.labels.numpy().reshape(-1)
        z, y = z[:, y >= 0], y[y >= 0]
        p = np.exp(z) / np.exp(z).sum(0)
        yield p.max(0), p.argmax(0) == y


def test_the_ends_are_nothing_found_and_everything_found(cases):
    curve = oracle_curves(cases, {"plain": make_calibrator("identity", 4)})["plain"]
    nothing = [error(confidence, right) for confidence, right in voxels(cases)]
    # A voxel with T = 1e10 has confidence 1 / C; the lead of the winner puts 0.25 just above the edge of its bin.
    everything = [error(np.where(right, confidence, 0.25 + 1e-9), right) for confidence, right in voxels(cases)]
    assert curve[0] == pytest.approx(np.mean(nothing), rel=1e-6)
    assert curve[-1] == pytest.approx(np.mean(everything), rel=1e-6)
    assert len(curve) == len(RATES) == 11


def test_a_curve_falls_while_confident_mistakes_are_found_and_does_not_depend_on_the_run(cases):
    curve = oracle_curves(cases, {"plain": make_calibrator("identity", 4)})["plain"]
    assert curve[5] < curve[0]
    assert curve == oracle_curves(cases, {"plain": make_calibrator("identity", 4)})["plain"]
    assert curve != oracle_curves(cases, {"plain": make_calibrator("identity", 4)}, seed=1)["plain"]


def test_a_selector_is_judged_on_the_voxels_that_count(cases):
    calibrator = make_calibrator("selective", 4)
    calibrator.selector.set_constant(flagged=True)
    with torch.no_grad():
        calibrator.inverse_temperature_wrong.fill_(1e-10)
    found = judge_selector(cases, calibrator)
    assert found.flagged == 3 * 11 * 13 - 26
    assert found.mispredicted == sum(int((~right).sum()) for _, right in voxels(cases))
    assert (found.recall, found.precision) == (1, pytest.approx(found.mispredicted / found.flagged))
    flat = [error(np.full(right.shape, 0.25 + 1e-9), right) for _, right in voxels(cases)]
    assert found.ece == pytest.approx(np.mean(flat), rel=1e-4)


def test_shares_without_a_denominator_are_none(tables):
    logits = [np.eye(4)[:, [0, 1, 2, 3]].reshape(4, 4) * 9]
    cases = ArrayCases(logits, [np.arange(4)])
    calibrator = make_calibrator("selective", 4)
    calibrator.selector.set_constant(flagged=False)
    own = judge_selector(cases, calibrator)
    assert (own.recall, own.precision, own.mispredicted, own.flagged) == (None, None, 0, 0)
    data = DetectionData(list(RATES), {"toy": DetectionTask({"a": [0.1] * 11}, {"b": own})})
    assert "| b | — |" in tables("detection", data)


def test_a_benchmark_has_curves_of_its_tasks(studied):
    found = studied["detection"].tasks["toy"]
    assert list(found.oracle) == ["identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"]
    assert found.learned == {}


def test_curves_are_the_oracle_s_and_marks_are_learned_selectors(figures, texts):
    learned = {
        "s": {"recall": 0.4, "precision": 0.5, "ece": 0.03, "mispredicted": 1, "flagged": 1},
        "nothing found": {"recall": None, "precision": None, "ece": 0.1, "mispredicted": 0, "flagged": 0},
    }
    task = {"oracle": {"ts": [0.1, 0.05, 0.0]}, "learned": learned}
    figure = figures("detection", {"rates": [0, 0.5, 1], "tasks": {"heart": task}})["detection_heart"].draw()
    oracle, mark = figure.axes[0].lines
    assert oracle.get_xydata().tolist() == [[0, 10], [50, 5], [100, 0]]
    assert mark.get_xydata().tolist() == [[40, 3]]
    assert "ts, oracle" in texts(figure)
    assert not any("nothing found" in text for text in texts(figure))
