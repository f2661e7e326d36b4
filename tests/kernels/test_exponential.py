import math

import numba
import numpy as np
import pytest

from segcal.kernels.exponential import exp_below_zero, fast_exp, log1p_above_zero, single_of_bits


@numba.njit
def exponentials(t, out):
    for v in range(t.size):
        out[v] = exp_below_zero(t[v])


@numba.njit
def logarithms(u, out):
    for v in range(u.size):
        out[v] = log1p_above_zero(u[v])


@numba.njit
def fast_exponentials(values):
    out = np.empty_like(values)
    for i in range(len(values)):
        out[i] = fast_exp(values[i])
    return out


@numba.njit
def falls(start, stop):
    """Return how often the exponential falls from one float32 to the next above, given as bits of -t."""
    found, before = 0, exp_below_zero(-single_of_bits(np.int32(start)))
    for bits in range(start, stop):
        value = exp_below_zero(-single_of_bits(np.int32(bits)))
        found += value > before
        before = value
    return found


def compute_exp(t, dtype):
    out = np.zeros(t.size, dtype)
    exponentials(t.astype(dtype), out)
    return out


@pytest.mark.parametrize(("dtype", "floor", "tolerance"), [(np.float32, -86.0, 2e-7), (np.float64, -700.0, 4e-16)])
def test_the_exponential_is_right_to_about_one_unit_in_the_last_place(dtype, floor, tolerance):
    t = np.concatenate([np.linspace(floor, 0, 20001), -np.logspace(-9, 0, 200)]).astype(dtype)
    exact = np.array([math.exp(float(value)) for value in t])
    assert np.max(np.abs(compute_exp(t, dtype).astype(float) / exact - 1)) < tolerance


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_of_zero_is_exactly_one_and_far_below_it_is_nearly_nothing(dtype):
    found = compute_exp(np.array([0.0, -1e4]), dtype)
    assert found[0] == 1
    assert 0 <= found[1] < 1e-37


def test_the_exponential_is_monotone_for_every_float32():
    """Mixtures and tables are: the order of classes rests on it."""
    first, last = (int(np.float32(value).view(np.int32)) for value in (1e-9, 88))
    assert falls(first, last) == 0
    assert compute_exp(np.array([-1e-9]), np.float32)[0] == 1  # and above


def test_the_logarithm_keeps_the_digits_of_small_and_large_numbers():
    u = np.concatenate([[0.0], np.logspace(-40, 3, 5000), np.linspace(0, 3, 5001)])
    log = np.zeros_like(u)
    logarithms(u, log)
    exact = np.array([math.log1p(value) for value in u])
    np.testing.assert_allclose(log, exact, rtol=6e-16, atol=0)


def test_the_fast_exponential_is_right_to_3e_14_over_its_whole_range_and_at_every_boundary_of_its_reduction():
    halves = np.arange(-2042, 2042) * math.log(2) / 2  # where the integer part changes, and where it does not
    near = np.concatenate([np.nextafter(halves, -np.inf), halves, np.nextafter(halves, np.inf)])
    values = np.concatenate([np.linspace(-708, 708, 200_001), np.linspace(-1, 1, 100_001), near[np.abs(near) <= 707.9]])
    np.testing.assert_allclose(fast_exponentials(values), np.exp(values), rtol=3e-14)


def test_the_fast_exponential_of_zero_is_exactly_one_and_far_below_it_is_zero():
    values = np.array([0.0, -0.0, -708.1, -1e4, -1e300, -np.inf])
    assert fast_exponentials(values).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
