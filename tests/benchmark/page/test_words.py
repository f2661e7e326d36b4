from segcal.benchmark.page.words import CALIBRATOR_WORDS, METRIC_WORDS, PERCENT, POOLING_WORDS, calibrator_words
from segcal.calibrators import CALIBRATORS
from segcal.metrics import METRICS
from segcal.pooling import POOLINGS


def test_everything_that_can_stand_in_a_table_has_words():
    assert set(POOLING_WORDS) == set(POOLINGS)
    assert set(METRIC_WORDS) <= set(METRICS)
    assert set(PERCENT) <= set(METRIC_WORDS)
    assert set(CALIBRATOR_WORDS) <= set(CALIBRATORS)


def test_words_differ_so_that_rows_can_be_told_apart():
    assert len(set(CALIBRATOR_WORDS.values())) == len(CALIBRATOR_WORDS)
    assert calibrator_words("mine") == "mine"
