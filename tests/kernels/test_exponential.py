import math

import numba
import numpy as np
import pytest

from segcal.kernels.exponential import exp_parts, log1p_row


@numba.njit
def exponentials(x, top, gap, bits, scale):
    exp_parts(x, top, gap, bits, x.size)
    for v in range(x.size):
        x[v] *= scale[v]


def compute_exp(t, dtype):
    bits = np.zeros(t.size, np.int32 if dtype == np.float32 else np.int64)
    x = t.astype(dtype)
    exponentials(x, np.zeros_like(x), np.zeros_like(x), bits, bits.view(dtype))
    return x


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


def test_the_logarithm_keeps_the_digits_of_small_and_large_numbers():
    u = np.concatenate([[0.0], np.logspace(-40, 3, 5000), np.linspace(0, 3, 5001)])
    log, bits = np.zeros_like(u), np.zeros(u.size, np.int64)
    log1p_row(u, log, bits, bits.view(np.float64), u.size)
    exact = np.array([math.log1p(value) for value in u])
    np.testing.assert_allclose(log, exact, rtol=6e-16, atol=0)
