import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.metrics.masks import dice_score, hausdorff_95, hausdorff_distance
from segcal.statistics import count_logits
from segcal.statistics.additive import Confusion
from segcal.statistics.surface import Surface


def confuse(truth, prediction, num_classes):
    count = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(count, (truth, prediction), 1)
    return Confusion(count, 0)


WORKED = confuse([0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 2], 3)


def test_the_worked_example():
    assert dice_score(WORKED) == pytest.approx(0.4)
    assert dice_score(WORKED, empty="skip") == pytest.approx(0.8)
    assert dice_score(WORKED, empty="forgive") == pytest.approx(0.9)
    assert dice_score(WORKED, include_background=True) == pytest.approx((2 / 3 + 0.8) / 3)
    with pytest.raises(InputError, match=r"no empty is named 'zero'. Choose one of: nan, one, skip, forgive"):
        dice_score(WORKED, empty="zero")


@pytest.mark.parametrize(("empty", "expected"), [("nan", 0.8), ("one", 0.9), ("skip", 0.8), ("forgive", 0.9)])
def test_a_class_that_is_nowhere(empty, expected):
    assert dice_score(confuse([0, 0, 1, 1], [0, 1, 1, 1], 3), empty) == pytest.approx(expected)


def test_only_background_has_no_foreground_score():
    assert np.isnan(dice_score(confuse([0, 0], [0, 0], 3)))
    assert dice_score(confuse([0, 0], [0, 0], 3), empty="one") == 1


def make_surface(missing, largest):
    return Surface(np.array(largest), np.array(largest) / 2, np.array(largest) / 4, np.array(missing), 50.0)


def test_the_mean_over_classes_counts_a_missed_class_as_the_diagonal():
    surface = make_surface([2, 0, 1, 2], [np.nan, 10.0, np.nan, np.nan])
    assert hausdorff_distance(surface) == pytest.approx(30.0)
    assert hausdorff_distance(surface, one_empty="nan") == pytest.approx(10.0)
    assert hausdorff_95(surface) == pytest.approx(27.5)
    assert hausdorff_95(surface, percentile_of="both", one_empty="nan") == pytest.approx(2.5)

    assert np.isnan(hausdorff_distance(make_surface([2, 2], [np.nan, np.nan])))
    with pytest.raises(InputError, match=r"no one_empty is named 'zero'. Choose one of: diagonal, nan"):
        hausdorff_distance(surface, one_empty="zero")
    with pytest.raises(InputError, match=r"no percentile_of is named 'all'. Choose one of: each, both"):
        hausdorff_95(surface, percentile_of="all")


def test_flips_are_shares_of_voxels_and_kinds_are_shares_of_flips():
    labels = torch.tensor([0, 1, 2, 0, 1, -1, 0, 0])
    before = np.array([0, 0, 0, 1, 1, 0, 0, 0])
    after = torch.tensor([1, 1, 1, 1, 1, 2, 2, 0])
    logits = torch.nn.functional.one_hot(after, 3).T.float()
    tables = count_logits(logits, labels, reference=before).tables
    # Voxel 0: right to wrong; 1: wrong to right; 2: wrong to wrong; 5: ignored; 6: right to wrong.
    assert METRICS["flip_rate"](tables) == pytest.approx(4 / 7)
    assert METRICS["harmful_flips"](tables) == pytest.approx(2 / 4)
    assert METRICS["beneficial_flips"](tables) == pytest.approx(1 / 4)
    assert METRICS["neutral_flips"](tables) == pytest.approx(1 / 4)
    assert tables.flips.count[0, 2].tolist() == [1, 0, 0]


def test_without_flips_their_kinds_are_undefined_and_without_a_reference_the_rate_too():
    logits, labels = torch.tensor([[1.0], [0.0]]), torch.tensor([0])
    same = count_logits(logits, labels, reference=np.array([0])).tables
    assert METRICS["flip_rate"](same) == 0
    assert METRICS["harmful_flips"](same) is None
    assert METRICS["flip_rate"](count_logits(logits, labels).tables) is None
