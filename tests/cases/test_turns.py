import numpy as np
import pytest

from segcal.cases.turns import Turn, turns_of


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((7,), 2), ((4, 5), 4), ((5, 5), 8), ((1, 5), 2), ((3, 4, 4), 16), ((3, 3, 3), 48)]
)
def test_a_box_has_as_many_turns_as_symmetries_and_they_differ(shape, count):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    turned = [turn(values) for turn in turns_of(shape)]
    assert len(turned) == count
    assert np.array_equal(turned[0], values)
    assert all(one.shape == shape for one in turned)
    assert len({one.tobytes() for one in turned}) == count


def test_with_many_axes_only_single_ones_are_mirrored():
    assert turns_of((2, 2, 1, 2)) == [Turn((0, 1, 2, 3)), *(Turn((0, 1, 2, 3), (axis,)) for axis in (0, 1, 3))]


@pytest.mark.parametrize("turn", turns_of((4, 4, 4)), ids=str)
def test_the_text_is_code_that_does_it(turn):
    labels = np.arange(64).reshape(4, 4, 4)
    assert np.array_equal(eval(str(turn), {"numpy": np, "labels": labels}), turn(labels))
