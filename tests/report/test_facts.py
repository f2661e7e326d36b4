"""The numbers behind a verdict, from hand-made ones."""

import numpy as np
import pytest

from segcal.errors import InputError
from segcal.report.facts import Change, FlipCount, Honesty
from segcal.statistics.reliability import Curve
from segcal.summary import Difference


def change(before, after, low, high):
    return Change(before, after, Difference(after - before, low, high, 30, 0, 25, 1, 4))


def test_an_effect_needs_its_whole_interval_on_one_side():
    assert change(1, 0, -2, -0.1).effect() == "better"
    assert change(0.8, 0.9, 0.05, 0.2).effect("higher") == "better"
    assert change(0.8, 0.9, 0.05, 0.2).effect() == "worse"
    assert change(1, 0, -2, 0.0).effect() == "same"
    assert Change(1, 0, Difference(None, None, None, 0, 3, 0, 0, 0)).effect() == "same"


def test_honesty_is_that_of_the_voxels_of_a_curve():
    curve = Curve(count=np.array([2, 0, 6]), right=np.array([1, 0, 4]), confidence=np.array([0.5, 0.0, 5.7]))
    assert Honesty.of(curve) == Honesty(6.2 / 8, 5 / 8)
    with pytest.raises(InputError, match="no voxel that counts"):
        Honesty.of(Curve(np.zeros(3, int), np.zeros(3, int), np.zeros(3)))


def test_a_gap_has_a_direction_and_a_small_one_has_no_word():
    assert Honesty(0.95, 0.92).judged == "overconfident by 3.0 points"
    assert Honesty(0.90, 0.92).judged == "underconfident by 2.0 points"
    assert Honesty(0.9205, 0.92).judged == ""


def test_flips_add_up():
    assert FlipCount(100, (3, 2, 1)).total == 6
