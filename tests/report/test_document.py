"""The document: words for every metric, and curves, classes and bands against loops over voxels."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from segcal.cases import ArrayCases
from segcal.evaluation.case_counter import Counter
from segcal.metrics import METRICS, find_metrics
from segcal.pooling import POOLINGS
from segcal.report import document as doc
from segcal.report.document import band_rows, class_rows, pipeline_curves, shown_classes
from segcal.statistics.additive import total_of
from segcal.statistics.boundary import find_boundary
from segcal.statistics.reliability import CurveSpread

SPACE = (14, 17, 5)


def test_everything_that_can_stand_in_a_table_has_words():
    assert set(doc.POOLING_TITLES) == set(POOLINGS)
    assert {*doc.FIRST_COLUMNS, *doc.MORE_COLUMNS} <= {name for name, metric in METRICS.items() if metric.plain}


def test_metrics_come_in_the_order_of_the_columns_with_unit_and_direction_those_of_ones_own_last():
    mine = replace(METRICS["mce"], plain="Mine", sentence="What I measure.")
    words = doc.metric_words({"mine": mine} | {name: METRICS[name] for name in ("brier", "dice", "ece", "mce")})
    assert list(words) == ["ece", "dice", "brier", "mine"]  # others have no words
    assert [each.shown for each in words.values()] == [True, True, False, False]
    assert [each.percent for each in words.values()][:3] == [True, True, False]
    assert (words["dice"].better, words["dice"].name) == ("higher", "dice")
    assert "0 % would be perfect" in words["ece"].explained


def test_keys_are_those_of_the_page():
    assert msgspec.to_builtins(doc.BandRow(3, 10, 0.5, None, 0))["from"] == 3
    assert set(msgspec.to_builtins(doc.CurveLists([1], [0.5], [1.0]))) == {"count", "confidence", "accuracy"}


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
    tested = [case for own in repeats for case in cases.subset(list(own))]
    probs = [torch.softmax(case.logits.double(), 0).numpy().reshape(3, -1) for case in tested]
    return np.concatenate(probs, axis=1), np.concatenate([case.labels.numpy().reshape(-1) for case in tested])


def curves_of(repeats, level=0.95, classes=(0, 1, 2), spread=True):
    totals = [doc.curves_of(total_of(own)) for own in repeats]
    spreads = [
        {
            name: total_of({key: CurveSpread.of(doc.curves_of(each)[name]) for key, each in own.items()})
            for name in ("all", "foreground", "classes", "bands")
        }
        for own in repeats
    ]
    return pipeline_curves(totals, spreads if spread else [{}, {}], level, classes)


def test_a_curve_counts_the_voxels_of_all_repeats(repeats, voxels):
    curve, (probs, labels) = curves_of(repeats).all, voxels
    confidence, right = probs.max(0), probs.argmax(0) == labels
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
    assert set(curves_of(repeats, spread=False).all.low) == {None}  # results of an older version


def test_every_kind_of_curve_is_there_and_thinned_tables_have_the_same(repeats):
    found = curves_of(repeats, classes=[0, 2])
    assert (len(found.classes), len(found.bands)) == (2, 4)
    assert sum(sum(band.count) for band in found.bands) == sum(found.all.count)
    assert sum(found.foreground.count) < sum(found.all.count)
    thin = [{key: doc.thinned(each) for key, each in own.items()} for own in repeats]
    assert curves_of(thin, classes=[0, 2]) == found


def test_the_rows_of_classes_are_those_of_all_voxels_together(tables, voxels):
    probs, labels = voxels
    for number, row in enumerate(class_rows(tables)):
        truth, predicted = labels == number, probs.argmax(0) == number
        assert row.voxels == truth.sum()
        assert row.dice == pytest.approx(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()), abs=1e-5)
        assert row.frequency == pytest.approx(truth.mean(), abs=1e-6)
        assert row.mean_probability == pytest.approx(probs[number].mean(), abs=1e-6)
        assert row.error >= abs(row.frequency - row.mean_probability) - 1e-6


def test_the_rows_of_bands_are_those_of_voxels_near_a_boundary(cases, repeats, tables, voxels):
    rows = band_rows(tables, np.arange(15).reshape(5, 3))
    assert [row.start for row in rows] == [0, 3, 7, 15]
    near = [find_boundary(case.labels.numpy()).sum() for own in repeats for case in cases.subset(list(own))]
    assert rows[0].voxels > sum(near)
    assert sum(row.voxels for row in rows) == len(voxels[1])
    assert [row.flips for row in rows] == [3, 12, 21, 30]
    assert band_rows(replace(tables, bands=None), np.zeros((5, 3))) == []


def test_of_many_classes_those_with_most_voxels_are_shown(tables, voxels, monkeypatch):
    assert shown_classes(tables) == [0, 1, 2]
    monkeypatch.setattr(doc, "MOST_CLASSES", 1)
    assert shown_classes(tables) == [np.bincount(voxels[1]).argmax()]
