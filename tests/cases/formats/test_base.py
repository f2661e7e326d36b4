import numpy as np
import pytest

from segcal.cases.formats import FORMATS, Options
from segcal.errors import InputError


def test_one_axis_moves_to_the_front_and_the_others_keep_their_order(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4, 5)))
    for axis in range(4):
        found = FORMATS["npy"](tmp_path, Options(class_axis=axis))
        values = np.zeros((2, 3, 4, 5))
        expected = np.moveaxis(values, axis, 0)
        assert found.header("a").shape == found.read("a").values.shape == expected.shape
        assert found.as_stored(expected).shape == values.shape


def test_a_case_that_is_not_there_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with pytest.raises(InputError, match="has no scores for it, but every member needs them"):
        FORMATS["npy"](tmp_path, Options()).path("b")
