"""An exponential and a logarithm for the inner loop of the likelihood kernels.

numba calls the scalar exponential of the C library, over which no loop can be vectorised. This one is a polynomial and
an integer put into the exponent: relative error below 3e-14 for x in [-708, 708], and 0 below. Unlike the rows of
:mod:`segcal.kernels.exponential` it stays right where the compiler may reassociate sums, as the gradients need it.
"""

import numpy as np
from numba import njit

from segcal.kernels.exponential import LN2, SQRT_2, bits_of_double, double_of_bits

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93145751953125e-1
LN2_LOW = 1.42860682030941723212e-6
# What the compiler may do in these kernels: reorder sums and fuse products, so that reductions run on several voxels
# at once. NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}
# Truncation rounds towards zero; with this added it rounds down.
OFFSET = 1100


@njit(inline="always")
def fast_exp(x: float) -> float:
    """Return e to the power of `x` for x <= 708; 0 for x < -708."""
    clipped = max(x, -708.0)
    power = np.int32(clipped * LOG2_E + (OFFSET + 0.5)) - np.int32(OFFSET)
    n = np.float64(power)
    r = (clipped - n * LN2_HIGH) - n * LN2_LOW
    # Taylor series to r^12: |r| <= 0.347, so the rest is below 2e-16.
    y = 1.0 / 479001600.0
    y = y * r + 1.0 / 39916800.0
    y = y * r + 1.0 / 3628800.0
    y = y * r + 1.0 / 362880.0
    y = y * r + 1.0 / 40320.0
    y = y * r + 1.0 / 5040.0
    y = y * r + 1.0 / 720.0
    y = y * r + 1.0 / 120.0
    y = y * r + 1.0 / 24.0
    y = y * r + 1.0 / 6.0
    y = y * r + 0.5
    y = y * r + 1.0
    y = y * r + 1.0
    value = y * double_of_bits((np.int64(power) + 1023) << 52)
    return value if x >= -708.0 else 0.0


@njit(inline="always")
def fast_log(x: float) -> float:
    """Return the logarithm of a normal positive number, to 3e-16 of its size or of 1, whichever is larger."""
    power = (bits_of_double(x * SQRT_2) >> 52) - 1023
    f = x * double_of_bits((1023 - power) << 52) - 1.0
    # The series of log((1 + w) / (1 - w)); 1 + f is in [0.70, 1.42], so |w| <= 0.172 and the rest is below 1e-19.
    w = f / (2.0 + f)
    square = w * w
    y = 1.0 / 23.0
    y = y * square + 1.0 / 21.0
    y = y * square + 1.0 / 19.0
    y = y * square + 1.0 / 17.0
    y = y * square + 1.0 / 15.0
    y = y * square + 1.0 / 13.0
    y = y * square + 1.0 / 11.0
    y = y * square + 1.0 / 9.0
    y = y * square + 1.0 / 7.0
    y = y * square + 1.0 / 5.0
    y = y * square + 1.0 / 3.0
    y = y * square + 1.0
    return np.float64(power) * LN2 + 2.0 * w * y
