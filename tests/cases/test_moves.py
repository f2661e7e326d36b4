import numpy as np
import pytest

from segcal.cases.glance import Shift, turns_of


@pytest.mark.parametrize("shift", [Shift(0, 2), Shift(1, -3)])
def test_a_shift_puts_what_stays_inside_where_it_comes_to_lie(shift):
    values = np.arange(6 * 7).reshape(6, 7)
    moved = np.roll(values, shift.by, shift.axis)
    assert np.array_equal(shift.onto(moved), shift.taken(values))
    assert shift.onto(values).shape == shift.taken(values).shape


def test_a_shift_says_what_it_does():
    assert str(Shift(0, 1)) == "moved by +1 voxel along axis 0"
    assert str(Shift(2, -3)) == "moved by -3 voxels along axis 2"


def test_the_first_turn_changes_nothing_and_all_differ():
    values = np.arange(27).reshape(3, 3, 3)
    turned = [turn(values) for turn in turns_of(values.shape)]
    assert np.array_equal(turned[0], values)
    assert len({each.tobytes() for each in turned}) == len(turned) == 48
