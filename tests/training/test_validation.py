import math

import pytest
import torch
from torch import nn

from segcal.errors import InputError
from segcal.training import case_dice, validation_dice
from segcal.types import IGNORED


def scores_of(predicted, classes):
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).T.float()


def test_the_worked_value():
    labels = torch.tensor([0, 0, 1, 1, 0, 0])
    logits = scores_of([0, 1, 1, 1, 0, 2], 3)
    assert float(case_dice(logits, labels)) == pytest.approx((0.8 + 0) / 2)
    assert float(case_dice(logits, labels, include_background=True)) == pytest.approx((2 / 3 + 0.8 + 0) / 3)


def test_a_class_that_is_nowhere_is_left_out():
    labels = torch.tensor([0, 0, 1, 1])
    assert float(case_dice(scores_of([0, 1, 1, 1], 4), labels)) == pytest.approx(0.8)
    assert math.isnan(float(case_dice(scores_of([0, 0], 3), torch.tensor([0, 0]))))


def test_ignored_voxels_do_not_count_even_if_predicted():
    labels = torch.tensor([1, 1, IGNORED, IGNORED])
    assert float(case_dice(scores_of([1, 0, 1, 2], 3), labels)) == pytest.approx(2 / 3)


class Fixed(nn.Module):
    """Predicts its image."""

    def forward(self, image):
        assert not self.training
        return image


def test_cases_are_averaged_and_the_mode_is_given_back():
    good = scores_of([0, 1, 1, 0], 2), torch.tensor([0, 1, 1, 0])
    bad = scores_of([1, 0, 0, 1], 2), torch.tensor([0, 1, 1, 0])
    empty = scores_of([0, 0], 2), torch.tensor([0, 0])
    network = Fixed().train()
    assert validation_dice(network, [good, bad, empty], "cpu") == pytest.approx(0.5)
    assert network.training


@pytest.mark.parametrize("ignored", [-1, 255, -100, 0])
def test_the_label_that_is_ignored_can_be_any(ignored):
    logits = torch.zeros(3, 4, 4)
    logits[1] = 1
    labels = torch.ones(4, 4, dtype=torch.int64)
    labels[:2] = ignored
    assert float(case_dice(logits, labels, ignore_index=ignored)) == 1.0


@pytest.mark.parametrize("strange", [3, 255, -1])
def test_a_label_that_is_no_class_is_refused(strange):
    labels = torch.ones(4, 4, dtype=torch.int64)
    labels[0, 0] = strange
    with pytest.raises(InputError, match=f"labels contains {strange}, but there are classes 0 to 2"):
        case_dice(torch.zeros(3, 4, 4), labels, ignore_index=-7)
