import numpy as np
import pytest
from sklearn.metrics import f1_score, jaccard_score

from segcal.errors import InputError
from segcal.metrics.overlap import class_dice, dice_score, mean_iou, pixel_accuracy
from segcal.statistics.case import Confusion


def confuse(truth, prediction, num_classes):
    count = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(count, (truth, prediction), 1)
    return Confusion(count, 0)


WORKED = confuse([0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 2], 3)


def test_the_worked_example():
    np.testing.assert_allclose(class_dice(WORKED), [0.6666667, 0.8, 0.0], atol=1e-7)
    assert dice_score(WORKED) == pytest.approx(0.4)
    assert dice_score(WORKED, empty="skip") == pytest.approx(0.8)
    assert dice_score(WORKED, empty="forgive") == pytest.approx(0.9)
    assert dice_score(WORKED, include_background=True) == pytest.approx((2 / 3 + 0.8) / 3)


@pytest.mark.parametrize(("empty", "expected"), [("nan", 0.8), ("one", 0.9), ("skip", 0.8), ("forgive", 0.9)])
def test_a_class_that_is_nowhere(empty, expected):
    assert dice_score(confuse([0, 0, 1, 1], [0, 1, 1, 1], 3), empty) == pytest.approx(expected)


def test_only_background_has_no_foreground_score():
    assert np.isnan(dice_score(confuse([0, 0], [0, 0], 3)))
    assert dice_score(confuse([0, 0], [0, 0], 3), empty="one") == 1


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, prediction = rng.integers(5, size=400), rng.integers(5, size=400)
    prediction[:250] = truth[:250]
    confusion = confuse(truth, prediction, 5)
    assert dice_score(confusion) == pytest.approx(f1_score(truth, prediction, labels=range(1, 5), average="macro"))
    assert mean_iou(confusion) == pytest.approx(jaccard_score(truth, prediction, average="macro"))
    assert pixel_accuracy(confusion) == pytest.approx((truth == prediction).mean())


def test_an_unknown_rule_for_empty_classes_is_refused():
    with pytest.raises(InputError, match=r"no empty is named 'zero'. Choose one of: nan, one, skip, forgive"):
        dice_score(WORKED, empty="zero")
