"""Words of the document: every metric and calibrator of a table can be explained."""

from dataclasses import replace

import msgspec

from segcal.metrics import METRICS
from segcal.pooling import POOLINGS
from segcal.report.document import (
    FIRST_COLUMNS,
    MORE_COLUMNS,
    POOLING_TITLES,
    BandRow,
    CurveLists,
    metric_words,
)


def test_everything_that_can_stand_in_a_table_has_words():
    assert set(POOLING_TITLES) == set(POOLINGS)
    assert {*FIRST_COLUMNS, *MORE_COLUMNS} == {name for name, metric in METRICS.items() if metric.plain}


def test_metrics_come_in_the_order_of_the_columns_with_unit_and_direction():
    words = metric_words({name: METRICS[name] for name in ("brier", "dice", "ece", "mce")})
    assert list(words) == ["ece", "dice", "brier"]  # others have no words
    assert [each.shown for each in words.values()] == [True, True, False]
    assert [each.percent for each in words.values()] == [True, True, False]
    assert (words["dice"].better, words["dice"].name) == ("higher", "dice")
    assert "0 % would be perfect" in words["ece"].explained


def test_a_metric_of_ones_own_with_words_comes_last():
    worded = replace(METRICS["mce"], plain="Mine", sentence="What I measure.")
    assert [each.title for each in metric_words({"mine": worded, "ece": METRICS["ece"]}).values()] == [
        "Calibration error",
        "Mine",
    ]


def test_keys_are_those_of_the_page():
    assert msgspec.to_builtins(BandRow(3, 10, 0.5, None, 0))["from"] == 3
    assert set(msgspec.to_builtins(CurveLists([1], [0.5], [1.0]))) == {"count", "confidence", "accuracy"}
