"""ECE by region and by the share of mispredictions found: plain loops over voxels, and ends of curves by hand."""

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.cases import ArrayCases
from segcal.studies.selective import (
    RATES,
    DetectionData,
    DetectionTask,
    box,
    judge_selector,
    measure_regions,
    oracle_curves,
)

SPACE = (9, 14)
NEAR = np.zeros(SPACE, bool)
NEAR[:, 4:10] = True  # the boundary is columns 6 and 7


def ece(confidence, right):
    bins = np.ceil(confidence * 50)
    return sum(abs((confidence - right)[bins == b].sum()) for b in range(1, 51)) / len(right)


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(0)


def halves():
    """Two cases, the first with a boundary down its middle, and an ignored voxel."""
    rng = np.random.default_rng(3)
    labels = [np.zeros(SPACE, int), np.ones(SPACE, int)]
    labels[0][:, 7:], labels[0][0, 0] = 2, 9
    logits = [3 * rng.normal(size=(3, *SPACE)) + 2 * (y == np.arange(3)[:, None, None]) for y in labels]
    return ArrayCases(logits, labels, ignore=9, ids=["a", "b"]), logits, labels


def test_every_region_has_the_error_of_its_own_voxels_and_the_rise_of_entropy_is_that_of_each_case():
    cases, logits, labels = halves()
    expected = {name: [] for name in ("all", "right", "wrong", "boundary", "entropy")}
    rises = []
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        p, counts = softmax(z), y != 9
        confidence, right = p.max(0), p.argmax(0) == y
        expected["all"].append(ece(confidence[counts], right[counts]))
        expected["right"].append(1 - confidence[counts & right].mean())
        expected["wrong"].append(confidence[counts & ~right].mean())
        first, second = (-(each * np.log(each)).sum(0)[counts].mean() for each in (p, softmax(z / 4)))
        expected["entropy"].append(first)
        rises.append(second - first)
        if number == 0:
            expected["boundary"].append(ece(confidence[NEAR & counts], right[NEAR & counts]))
    hot = make_calibrator("ts", 3)
    with torch.no_grad():
        hot.inverse_temperature.fill_(0.25)
    found = measure_regions(cases, {"plain": make_calibrator("identity", 3), "hot": hot})
    for name, values in expected.items():
        one = found["plain"].entropy if name == "entropy" else found["plain"].ece[name]
        assert (one.minimum, one.maximum) == pytest.approx((min(values), max(values))), name
        assert (one.cases, one.undefined) == (len(values), 2 - len(values))
    assert found["plain"].entropy_increase.maximum == 0
    assert found["hot"].entropy_increase.mean == pytest.approx(np.mean(rises), rel=1e-5)


def test_whiskers_end_at_the_last_value_within_reach_and_undefined_ones_are_counted():
    values = np.array([0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 30.0])
    found = box(values)
    assert (found.lower_quartile, found.median, found.upper_quartile) == tuple(np.percentile(values, (25, 50, 75)))
    assert (found.low, found.high, found.outliers) == (10.0, 14.0, [0.0, 30.0])
    nothing = box(np.array([np.nan, np.nan]))
    assert (nothing.mean, nothing.outliers, nothing.cases, nothing.undefined) == (None, [], 0, 2)


def test_a_benchmark_has_its_tasks_and_pipelines(studied, tables):
    regions, detection = studied["regions"].tasks, studied["detection"].tasks
    assert list(regions) == list(detection) == ["toy", "plain"]
    titles = ["identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"]
    assert list(regions["toy"]) == list(detection["toy"].oracle) == titles
    assert detection["toy"].learned == {}
    assert "| ECE right" in tables("regions", studied["regions"])


def test_every_region_has_a_box_a_pipeline_in_per_cent_and_undefined_ones_are_left_out(figures, texts):
    ten = {"low": 0.08, "lower_quartile": 0.09, "median": 0.1, "upper_quartile": 0.11, "high": 0.12, "outliers": [0.5]}
    known = dict.fromkeys(("all", "right", "boundary", "interior"), ten)
    entropy = {"entropy": ten, "entropy_increase": ten}
    boxes = {"a": {"ece": {**known, "wrong": {"undefined": 5}}, **entropy}, "b": {"ece": known, **entropy}}
    figure = figures("regions", {"tasks": {"heart": boxes}})["regions_heart"].draw()
    axis = figure.axes[0]
    assert len(axis.patches) == 8
    medians = {round(float(line.get_ydata()[0]), 6) for line in axis.lines if len(set(line.get_ydata())) == 1}
    assert 10.0 in medians
    assert {"wrong predictions", "near a boundary", "a", "b"} <= set(texts(figure))


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(1)
    logits = [3 * rng.normal(size=(4, 11, 13)) for _ in range(3)]
    labels = [np.where(rng.random((11, 13)) < 0.3, rng.integers(4, size=(11, 13)), z.argmax(0)) for z in logits]
    labels[0][:2] = 255
    return ArrayCases(logits, labels, ignore=255)


def voxels(cases):
    for case in cases:
        z, y = case.logits.numpy().reshape(4, -1), case.labels.numpy().reshape(-1)
        p = softmax(z[:, y >= 0])
        yield p.max(0), p.argmax(0) == y[y >= 0]


def test_a_curve_begins_with_nothing_found_ends_with_everything_found_and_is_the_same_every_time(cases):
    curve = oracle_curves(cases, {"plain": make_calibrator("identity", 4)})["plain"]
    nothing = [ece(confidence, right) for confidence, right in voxels(cases)]
    # A voxel with T = 1e10 has confidence 1 / C; the lead of the winner puts 0.25 just above the edge of its bin.
    everything = [ece(np.where(right, confidence, 0.25 + 1e-9), right) for confidence, right in voxels(cases)]
    assert curve[0] == pytest.approx(np.mean(nothing), rel=1e-6)
    assert curve[-1] == pytest.approx(np.mean(everything), rel=1e-6)
    assert len(curve) == len(RATES) == 11
    assert curve[5] < curve[0]
    assert curve == oracle_curves(cases, {"plain": make_calibrator("identity", 4)})["plain"]


def test_a_selector_is_judged_on_the_voxels_that_count_and_shares_of_nothing_are_none(cases, tables):
    calibrator = make_calibrator("selective", 4)
    calibrator.selector.set_constant(flagged=True)
    with torch.no_grad():
        calibrator.inverse_temperature_wrong.fill_(1e-10)
    found = judge_selector(cases, calibrator)
    assert found.flagged == 3 * 11 * 13 - 26
    assert found.mispredicted == sum(int((~right).sum()) for _, right in voxels(cases))
    assert (found.recall, found.precision) == (1, pytest.approx(found.mispredicted / found.flagged))
    flat = [ece(np.full(right.shape, 0.25 + 1e-9), right) for _, right in voxels(cases)]
    assert found.ece == pytest.approx(np.mean(flat), rel=1e-4)
    calibrator.selector.set_constant(flagged=False)
    own = judge_selector(ArrayCases([np.eye(4) * 9], [np.arange(4)]), calibrator)
    assert (own.recall, own.precision, own.mispredicted, own.flagged) == (None, None, 0, 0)
    data = DetectionData(list(RATES), {"toy": DetectionTask({"a": [0.1] * 11}, {"b": own})})
    assert "| b | — |" in tables("detection", data)


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
