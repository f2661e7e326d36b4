"""Curves, classes and bands, against loops over voxels."""

import numpy as np
import pytest
import torch

from segcal.benchmark.page.curves import band_rows, class_rows, pipeline_curves, shown_classes
from segcal.statistics.additive import total_of
from segcal.statistics.boundary import find_boundary

TITLE = "identity(mean_logits)"


@pytest.fixture(scope="module")
def units(page_setting):
    return page_setting.results.repeats("heart", TITLE)


@pytest.fixture(scope="module")
def tables(units):
    return total_of({str(unit.unit.repeat): unit.tables for unit in units})


@pytest.fixture(scope="module")
def voxels(page_setting):
    """Confidence, prediction, probabilities and truth of all test voxels of all repeats, by repeat and case."""
    task = page_setting.tasks[0]
    found = []
    for repeat in range(2):
        for case in page_setting.split(task, "mean_logits", repeat).test:
            probs = torch.softmax(case.logits.double(), 0).numpy().reshape(3, -1)
            found.append((repeat, probs, case.labels.numpy()))
    return found


def test_a_curve_counts_the_voxels_of_all_repeats(units, voxels):
    curve = pipeline_curves(units, 0.95, [0, 1, 2])["all"]
    confidence = np.concatenate([probs.max(0) for _, probs, _ in voxels])
    right = np.concatenate([probs.argmax(0) == labels.reshape(-1) for _, probs, labels in voxels])
    place = np.ceil(confidence * 15).astype(int) - 1
    for number in range(15):
        inside = place == number
        assert curve["count"][number] == inside.sum()
        if inside.any():
            assert curve["accuracy"][number] == pytest.approx(right[inside].mean(), abs=1e-5)
            assert curve["confidence"][number] == pytest.approx(confidence[inside].mean(), abs=1e-5)
        else:
            assert curve["accuracy"][number] is curve["low"][number] is None


def test_an_interval_is_over_cases_and_not_narrower_with_more_repeats(units):
    both, one = pipeline_curves(units, 0.95, [0]), pipeline_curves(units[:1], 0.95, [0])
    widths = [
        [high - low for low, high in zip(each["all"]["low"], each["all"]["high"], strict=True) if low is not None]
        for each in (both, one)
    ]
    assert np.mean(widths[0]) == pytest.approx(np.mean(widths[1]), rel=0.5)
    narrow = pipeline_curves(units, 0.5, [0])["all"]
    assert narrow["low"][-1] > both["all"]["low"][-1]


def test_every_kind_of_curve_is_there(units):
    found = pipeline_curves(units, 0.95, [0, 2])
    assert set(found) == {"all", "foreground", "classes", "bands"}
    assert (len(found["classes"]), len(found["bands"])) == (2, 4)
    assert sum(sum(band["count"]) for band in found["bands"]) == sum(found["all"]["count"])


def test_results_of_an_older_version_have_no_intervals(units):
    old = [type(unit)(unit.unit, unit.header, unit.rows, {**unit.total, "spread": {}}) for unit in units]
    assert set(pipeline_curves(old, 0.95, [0])["all"]["low"]) == {None}


def test_the_rows_of_classes_are_those_of_all_voxels_together(tables, voxels):
    rows = class_rows(tables)
    labels = np.concatenate([labels.reshape(-1) for _, _, labels in voxels])
    probs = np.concatenate([probs for _, probs, _ in voxels], axis=1)
    for number, row in enumerate(rows):
        truth, predicted = labels == number, probs.argmax(0) == number
        assert row["voxels"] == truth.sum()
        assert row["dice"] == pytest.approx(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()), abs=1e-5)
        assert row["frequency"] == pytest.approx(truth.mean(), abs=1e-6)
        assert row["mean_probability"] == pytest.approx(probs[number].mean(), abs=1e-6)
        assert row["error"] >= abs(row["frequency"] - row["mean_probability"]) - 1e-6


def test_the_rows_of_bands_are_those_of_voxels_near_a_boundary(units, tables, voxels):
    rows = band_rows(units, tables)
    assert [row["from"] for row in rows] == [0, 3, 7, 15]
    on = [(probs.max(0), find_boundary(labels).reshape(-1)) for _, probs, labels in voxels]
    assert rows[0]["voxels"] > sum(mask.sum() for _, mask in on)
    assert rows[0]["flips"] == 0
    assert sum(row["voxels"] for row in rows) == sum(labels.size for _, _, labels in voxels)


def test_of_many_classes_those_with_most_voxels_are_shown(tables):
    assert shown_classes(tables) == [0, 1, 2]
