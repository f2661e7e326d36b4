"""The form of what a calibrator remembers."""

import math

import pytest

from segcal import make_calibrator
from segcal.errors import ArtifactError
from segcal.fitting.reference import calibrator_digest, read_numbers, written_numbers


def test_numbers_come_back_with_six_digits():
    assert read_numbers(written_numbers([[1 / 3, 2e9], [-1e-7, 0]]), 2, 2).tolist() == [[0.333333, 2e9], [-1e-7, 0]]
    assert math.isnan(read_numbers("nan", 1)[0])


@pytest.mark.parametrize("text", ["1 2", "1 2 x", ""])
def test_other_numbers_than_needed_are_refused(text):
    with pytest.raises(ArtifactError, match=r"but 3 numbers are needed. Fit again."):
        read_numbers(text, 3)


def test_a_digest_tells_calibrators_apart():
    one, other, third = (make_calibrator(name, classes) for name, classes in (("ts", 3), ("ts", 4), ("ets", 3)))
    assert len({calibrator_digest(each) for each in (one, other, third)}) == 3
    assert calibrator_digest(one) == calibrator_digest(make_calibrator("ts", 3))
