"""ECE by region: numbers from plain loops over voxels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from segcal import make_calibrator
from segcal.cases import ArrayCases
from segcal.studies.regions import Box, RegionBoxes, box, measure_regions, region_figure, region_outcome, run_regions
from segcal.studies.study import NothingToStudyError

SPACE = (9, 14)


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
    found = measure_regions(cases, {"plain": make_calibrator("identity", 3)})["plain"]
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        p = np.exp(z) / np.exp(z).sum(0)
        confidence, right = p.max(0), p.argmax(0) == y
        counts = y != 9
        assert found["ece"][number] == pytest.approx(ece(confidence[counts], right[counts]))
        assert found["ece_correct"][number] == pytest.approx(1 - confidence[counts & right].mean())
        assert found["ece_wrong"][number] == pytest.approx(confidence[counts & ~right].mean())
        assert found["entropy"][number] == pytest.approx(-(p * np.log(p)).sum(0)[counts].mean())
    near = np.zeros(SPACE, bool)
    near[:, 4:10] = True  # the boundary is columns 6 and 7
    z, y = logits[0], labels[0]
    p = np.exp(z) / np.exp(z).sum(0)
    for name, region in (("ece_boundary", near), ("ece_interior", ~near)):
        mask = region & (y != 9)
        assert found[name][0] == pytest.approx(ece(p.max(0)[mask], (p.argmax(0) == y)[mask]))
    assert found["ece_boundary"][1] is None


def test_the_increase_of_entropy_is_that_of_each_case():
    cases, _, _ = make_cases()
    hot = make_calibrator("ts", 3)
    with torch.no_grad():
        hot.inverse_temperature.fill_(0.25)
    values = measure_regions(cases, {"plain": make_calibrator("identity", 3), "hot": hot})
    data = region_outcome({"toy": values}).data.tasks["toy"]
    assert data["plain"].entropy_increase.maximum == 0
    rises = np.subtract(values["hot"]["entropy"], values["plain"]["entropy"])
    assert data["hot"].entropy_increase.mean == pytest.approx(rises.mean())
    assert rises.min() > 0
    assert data["hot"].ece["boundary"].undefined == 1


def test_a_box_without_a_value_is_empty_and_counts_what_is_missing():
    found = box([None, None])
    assert (found.mean, found.outliers, found.cases, found.undefined) == (None, [], 0, 2)


def test_whiskers_end_at_the_last_value_within_reach():
    values = [0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 30.0]
    found = box(values)
    quartiles = np.percentile(values, (25, 50, 75))
    assert (found.lower_quartile, found.median, found.upper_quartile) == tuple(quartiles)
    assert (found.low, found.high, found.outliers) == (10.0, 14.0, [0.0, 30.0])


def test_a_benchmark_has_its_tasks_and_pipelines(setting):
    study = run_regions(setting)
    assert list(study.data.tasks) == ["toy", "plain"]
    assert list(study.data.tasks["toy"]) == ["identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"]
    text = study.tables["selective_figure5_regions"].to_markdown()
    assert "| ECE right" in text
    assert "entropy increase" in text


def test_without_the_uncalibrated_prediction_there_is_nothing_to_compare_with(setting):
    units = tuple(each for each in setting.results.units if each.unit.pipeline.calibrator != "identity")
    with pytest.raises(NothingToStudyError, match="no task has uncalibrated mean logits"):
        run_regions(replace(setting, results=structs.replace(setting.results, units=units)))


def test_every_region_has_a_box_a_pipeline_in_per_cent_and_undefined_ones_are_left_out(texts):
    ten = Box(low=0.08, lower_quartile=0.09, median=0.1, upper_quartile=0.11, high=0.12, outliers=[0.5], cases=5)
    known = dict.fromkeys(("all", "right", "boundary", "interior"), ten)
    figure = region_figure(
        {"a": RegionBoxes({**known, "wrong": Box(undefined=5)}, ten, ten), "b": RegionBoxes(known, ten, ten)},
        ["b", "a"],
    )
    axis = figure.axes[0]
    assert len(axis.patches) == 8
    medians = {round(float(line.get_ydata()[0]), 6) for line in axis.lines if len(set(line.get_ydata())) == 1}
    assert 10.0 in medians
    found = texts(figure)
    assert {"wrong predictions", "near a boundary", "a", "b"} <= set(found)
