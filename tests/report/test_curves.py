"""Curves, classes and bands, against loops over voxels."""

import numpy as np
import pytest
import torch

from segcal.cases import ArrayCases
from segcal.evaluation.case_counter import Counter
from segcal.metrics import find_metrics
from segcal.report import curves as module
from segcal.report.curves import band_rows, class_rows, pipeline_curves, shown_classes
from segcal.statistics.additive import total_of
from segcal.statistics.boundary import find_boundary
from segcal.statistics.reliability import CurveSpread

SPACE = (14, 17, 5)


def named(tables):
    return {
        **{name: tables.reliability[15][name] for name in ("all", "foreground")},
        "classes": tables.classwise["all"],
        "bands": tables.bands.curves[15],
    }


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    labels = [np.kron(rng.integers(3, size=(2, 3, 1)), np.ones((7, 6, 5), int))[:, : SPACE[1]] for _ in range(9)]
    logits = [4 * np.eye(3)[y].transpose(3, 0, 1, 2) + 3 * rng.normal(size=(3, *SPACE)) for y in labels]
    return ArrayCases([z.astype(np.float32) for z in logits], labels, ids=[f"c{k}" for k in range(9)])


@pytest.fixture(scope="module")
def repeats(cases):
    """The tables of the test cases of two repeats, which share a case."""
    counter = Counter(find_metrics(("ece", "ace", "cece", "ba_ece", "ece_foreground")), None)
    return [
        {case.id: counter.count(case, None)[0] for case in cases.subset(ids)}
        for ids in (["c0", "c1", "c2", "c3", "c4"], ["c4", "c5", "c6", "c7", "c8"])
    ]


@pytest.fixture(scope="module")
def tables(repeats):
    return total_of({str(number): total_of(own) for number, own in enumerate(repeats)})


@pytest.fixture(scope="module")
def voxels(cases, repeats):
    """Probabilities and truth of all test voxels of all repeats."""
    return [
        (torch.softmax(case.logits.double(), 0).numpy().reshape(3, -1), case.labels.numpy())
        for own in repeats
        for case in cases.subset(list(own))
    ]


def curves_of(repeats, level=0.95, classes=(0, 1, 2)):
    totals = [named(total_of(own)) for own in repeats]
    spreads = [
        {
            name: total_of({key: CurveSpread.of(named(each)[name]) for key, each in own.items()})
            for name in ("all", "foreground", "classes", "bands")
        }
        for own in repeats
    ]
    return pipeline_curves(totals, spreads, level, classes)


def test_a_curve_counts_the_voxels_of_all_repeats(repeats, voxels):
    curve = curves_of(repeats).all
    confidence = np.concatenate([probs.max(0) for probs, _ in voxels])
    right = np.concatenate([probs.argmax(0) == labels.reshape(-1) for probs, labels in voxels])
    bins = np.ceil(confidence * 15).astype(int) - 1
    for number in range(15):
        inside = bins == number
        assert curve.count[number] == inside.sum()
        if inside.any():
            assert curve.accuracy[number] == pytest.approx(right[inside].mean(), abs=1e-5)
            assert curve.confidence[number] == pytest.approx(confidence[inside].mean(), abs=1e-5)
        else:
            assert curve.accuracy[number] is curve.low[number] is None


def test_an_interval_is_over_cases_and_not_narrower_with_more_repeats(repeats):
    both, one = curves_of(repeats).all, curves_of(repeats[:1]).all
    widths = [
        [high - low for low, high in zip(each.low, each.high, strict=True) if low is not None] for each in (both, one)
    ]
    assert np.mean(widths[0]) == pytest.approx(np.mean(widths[1]), rel=0.5)
    assert curves_of(repeats, 0.5).all.low[-1] > both.low[-1]


def test_every_kind_of_curve_is_there(repeats):
    found = curves_of(repeats, classes=[0, 2])
    assert (len(found.classes), len(found.bands)) == (2, 4)
    assert sum(sum(band.count) for band in found.bands) == sum(found.all.count)
    assert sum(found.foreground.count) < sum(found.all.count)


def test_results_of_an_older_version_have_no_intervals(repeats):
    found = pipeline_curves([named(total_of(own)) for own in repeats], [{}, {}], 0.95, [0])
    assert set(found.all.low) == {None}


def test_the_rows_of_classes_are_those_of_all_voxels_together(tables, voxels):
    labels = np.concatenate([labels.reshape(-1) for _, labels in voxels])
    probs = np.concatenate([probs for probs, _ in voxels], axis=1)
    for number, row in enumerate(class_rows(tables)):
        truth, predicted = labels == number, probs.argmax(0) == number
        assert row.voxels == truth.sum()
        assert row.dice == pytest.approx(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()), abs=1e-5)
        assert row.frequency == pytest.approx(truth.mean(), abs=1e-6)
        assert row.mean_probability == pytest.approx(probs[number].mean(), abs=1e-6)
        assert row.error >= abs(row.frequency - row.mean_probability) - 1e-6


def test_the_rows_of_bands_are_those_of_voxels_near_a_boundary(tables, voxels):
    flips = np.arange(15).reshape(5, 3)
    rows = band_rows(tables, flips)
    assert [row.start for row in rows] == [0, 3, 7, 15]
    assert rows[0].voxels > sum(find_boundary(labels).sum() for _, labels in voxels)
    assert sum(row.voxels for row in rows) == sum(labels.size for _, labels in voxels)
    assert [row.flips for row in rows] == [3, 12, 21, 30]


def test_of_many_classes_those_with_most_voxels_are_shown(tables, voxels, monkeypatch):
    assert shown_classes(tables) == [0, 1, 2]
    monkeypatch.setattr(module, "MOST_CLASSES", 1)
    counts = np.bincount(np.concatenate([labels.reshape(-1) for _, labels in voxels]))
    assert shown_classes(tables) == [counts.argmax()]
