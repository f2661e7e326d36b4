import math

import numpy as np
import pytest
from numba import njit

from segcal.kernels.affine_exponential import fast_exp


@njit
def row(values):
    out = np.empty_like(values)
    for i in range(len(values)):
        out[i] = fast_exp(values[i])
    return out


def test_it_is_the_exponential_to_3e_14_over_its_whole_range():
    values = np.concatenate([np.linspace(-708, 708, 200_001), np.linspace(-1, 1, 100_001)])
    np.testing.assert_allclose(row(values), np.exp(values), rtol=3e-14)


def test_every_boundary_of_the_reduction_is_exact_enough():
    halves = np.arange(-2042, 2042) * math.log(2) / 2  # where the integer part changes, and where it does not
    values = np.concatenate([np.nextafter(halves, -np.inf), halves, np.nextafter(halves, np.inf)])
    values = values[np.abs(values) <= 707.9]
    np.testing.assert_allclose(row(values), np.exp(values), rtol=3e-14)


def test_zero_gives_exactly_one_and_far_below_gives_zero():
    assert row(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    assert row(np.array([-708.1, -1e4, -1e300, -np.inf])).tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("step", [1e-3, 1e-9])
def test_it_does_not_fall_where_the_exponential_rises(step):
    values = np.arange(-20_000, 20_000) * step
    found = row(values)
    assert float((found[:-1] / found[1:]).max()) <= 1 + 3e-14
