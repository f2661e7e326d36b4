"""ECE by region: numbers from plain loops over voxels."""

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.cases import ArrayCases
from segcal.studies.regions import box, measure_regions

SPACE = (9, 14)
NEAR = np.zeros(SPACE, bool)
NEAR[:, 4:10] = True  # the boundary is columns 6 and 7


def make_cases():
    rng = np.random.default_rng(3)
    labels = [np.kron(rng.integers(3, size=(1, 2)), np.ones((9, 7), int)) for _ in range(2)]
    labels[0][:, :7], labels[0][:, 7:] = 0, 2
    labels[1][:] = 1  # no boundary
    labels[0][0, 0] = 9
    logits = [3 * rng.normal(size=(3, *SPACE)) + 2 * (y == np.arange(3)[:, None, None]) for y in labels]
    return ArrayCases(logits, labels, ignore=9, ids=["a", "b"]), logits, labels


def ece(confidence, right):
    bins = np.ceil(confidence * 50)
    return sum(abs((confidence - right)[bins == b].sum()) for b in range(1, 51)) / len(right)


def test_every_region_has_the_error_of_its_own_voxels():
    cases, logits, labels = make_cases()
    expected = {name: [] for name in ("all", "right", "wrong", "boundary", "interior", "entropy")}
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        p = np.exp(z) / np.exp(z).sum(0)
        confidence, right, counts = p.max(0), p.argmax(0) == y, y != 9
        expected["all"].append(ece(confidence[counts], right[counts]))
        expected["right"].append(1 - confidence[counts & right].mean())
        expected["wrong"].append(confidence[counts & ~right].mean())
        expected["entropy"].append(-(p * np.log(p)).sum(0)[counts].mean())
        for name, region in (("boundary", NEAR), ("interior", ~NEAR)):
            if number == 0:
                expected[name].append(ece(confidence[region & counts], right[region & counts]))
    plain = measure_regions(cases, {"plain": make_calibrator("identity", 3)})["plain"]
    for name, values in expected.items():
        found = plain.entropy if name == "entropy" else plain.ece[name]
        if name != "interior":  # of which a map without a boundary is all
            assert (found.minimum, found.maximum) == pytest.approx((min(values), max(values))), name
            assert (found.cases, found.undefined) == (len(values), 2 - len(values))


def test_the_increase_of_entropy_is_that_of_each_case():
    hot = make_calibrator("ts", 3)
    with torch.no_grad():
        hot.inverse_temperature.fill_(0.25)
    cases, logits, labels = make_cases()
    found = measure_regions(cases, {"plain": make_calibrator("identity", 3), "hot": hot})
    assert found["plain"].entropy_increase.maximum == 0
    rises = []
    for z, y in zip(logits, labels, strict=True):
        entropy = []
        for scores in (z, z / 4):
            p = np.exp(scores) / np.exp(scores).sum(0)
            entropy.append(-(p * np.log(p)).sum(0)[y != 9].mean())
        rises.append(entropy[1] - entropy[0])
    assert found["hot"].entropy_increase.mean == pytest.approx(np.mean(rises), rel=1e-5)
    assert found["hot"].entropy_increase.minimum > 0


def test_whiskers_end_at_the_last_value_within_reach_and_undefined_ones_are_counted():
    values = np.array([0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 30.0])
    found = box(values)
    assert (found.lower_quartile, found.median, found.upper_quartile) == tuple(np.percentile(values, (25, 50, 75)))
    assert (found.low, found.high, found.outliers) == (10.0, 14.0, [0.0, 30.0])
    nothing = box(np.array([np.nan, np.nan]))
    assert (nothing.mean, nothing.outliers, nothing.cases, nothing.undefined) == (None, [], 0, 2)


def test_a_benchmark_has_its_tasks_and_pipelines(studied, tables):
    data = studied["regions"]
    assert list(data.tasks) == ["toy", "plain"]
    assert list(data.tasks["toy"]) == ["identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"]
    text = tables("regions", data)
    assert "| ECE right" in text
    assert "entropy increase" in text


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
