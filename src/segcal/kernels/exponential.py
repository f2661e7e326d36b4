r"""Exponential and logarithm in a form that compilers turn into vector instructions.

The functions of the C library, which numba calls, keep a loop from being vectorised; these are arithmetic only.

For :math:`t \le 0`, with :math:`k` the whole number nearest to :math:`t / \ln 2` and :math:`r = t - k \ln 2`,

.. math:: e^t = 2^k e^r, \qquad e^r = 1 + r + r^2 g(r), \qquad |r| \le \tfrac12 \ln 2 .

:math:`\ln 2` is subtracted in two parts, of which the first has few bits, so that :math:`k` times it is exact;
:math:`2^k` is written as bits. :math:`g` is a polynomial: for float32 a minimax fit of degree 4 (relative error of
:math:`e^r` 3e-9), for float64 the Taylor series to degree 11 (below 1e-17). Numbers are rounded to nearest by adding
and subtracting 1.5 times the power of two at which the spacing of floats is one. In float32 multiplications and
additions are fused, so that a GPU has the same bits in fewer steps.

For :math:`u \ge 0`, with :math:`2^k` such that :math:`1 + f = (1 + u) 2^{-k}` is near 1 and :math:`w = f / (2 + f)`,

.. math:: \log(1 + u) = k \ln 2 + 2 \sum_{j=0}^{11} \frac{w^{2j+1}}{2j+1}, \qquad |w| \le 0.172,

which keeps every digit of a small :math:`u`. :math:`k = 0` below :math:`u = \sqrt2 - 1`.

The loops of the likelihoods let the compiler reassociate sums, and have an exponential and a logarithm of float64 of
their own, which stay right under it. The relative error is below 3e-14 for t in [-708, 708], and 0 below.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types
from numba.extending import intrinsic, overload

from segcal.kernels.loops import OPTIONS, part

F = np.float32

# Below, e^t is not a normal number any more; it is set to the smallest one.
FLOOR_32, FLOOR_64 = F(-87.0), -708.0
# With the exponent of one: the last bits of a sum are those of the exponent.
ROUND_32, ROUND_64 = F(1.5 * 2**23 + 127), 1.5 * 2.0**52
LOG2_E = 1.0 / math.log(2.0)
LOG2_E_32 = F(LOG2_E)
LN2_HIGH_32 = F(355 / 512)
LN2_LOW_32 = F(math.log(2.0) - 355 / 512)
# 33 bits of ln 2; the rest is ln 2 = 0.6931471805599453094172... minus it.
LN2_HIGH_64 = math.floor(math.log(2.0) * 2**33) / 2**33
LN2_LOW_64 = (math.log(2.0) - LN2_HIGH_64) + 2.3190468138462996e-17

G0, G1, G2, G3, G4 = F(0.49999994), F(0.1666652), F(0.041668393), F(0.008368781), F(0.0013814467)
ONE_32, SHIFT_32 = F(1.0), np.int32(23)
TAYLOR = tuple(1.0 / math.factorial(k) for k in range(13, 1, -1))
ODD = tuple(1.0 / (2 * j + 1) for j in range(11, -1, -1))
SQRT_2 = math.sqrt(2.0)
LN2 = math.log(2.0)
SQRT_2_32, LN2_32, ODD_32 = F(SQRT_2), F(LN2), tuple(F(1.0 / (2 * j + 1)) for j in range(4, -1, -1))
# What the compiler may do in loops of likelihoods: reorder sums and fuse products, so that reductions run on several
# voxels at once. NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}
SERIES = (*TAYLOR[1:], 1.0, 1.0)
FAST_HIGH, FAST_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6  # ln 2
# Truncation rounds towards zero; with this added it rounds down.
OFFSET = 1100


def _same_bits(given: Any, made: Any, machine: Any) -> Any:
    """Return a compiled function that takes the bits of a number of one type for those of another."""

    @intrinsic
    def cast(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], machine)

        return made(given), generate

    return cast


def _fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c of float32 numbers, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return float32(float32, float32, float32), generate


fused: Any = intrinsic(_fused)
single_of_bits = _same_bits(int32, float32, ir.FloatType())
bits_of_single = _same_bits(float32, int32, ir.IntType(32))
double_of_bits = _same_bits(int64, float64, ir.DoubleType())
bits_of_double = _same_bits(float64, int64, ir.IntType(64))


def exp_below_zero(t):  # type: ignore[no-untyped-def]
    """Return e^t for t <= 0, in the type of t, and about 0 far below."""
    raise NotImplementedError("only compiled loops call this")


def _exp_32(t):  # type: ignore[no-untyped-def]
    t = FLOOR_32 if t < FLOOR_32 else t
    shifted = fused(t, LOG2_E_32, ROUND_32)
    k = shifted - ROUND_32
    r = fused(k, -LN2_LOW_32, fused(k, -LN2_HIGH_32, t))
    g = fused(fused(fused(fused(G4, r, G3), r, G2), r, G1), r, G0)
    return (fused(g * r, r, r) + ONE_32) * single_of_bits(bits_of_single(shifted) << SHIFT_32)


def _exp_64(t):  # type: ignore[no-untyped-def]
    t = FLOOR_64 if t < FLOOR_64 else t
    k = (t * LOG2_E + ROUND_64) - ROUND_64
    r = (t - k * LN2_HIGH_64) - k * LN2_LOW_64
    g = TAYLOR[0]
    for coefficient in TAYLOR[1:]:
        g = g * r + coefficient
    return ((g * r * r + r) + 1.0) * double_of_bits((np.int64(k) + 1023) << 52)


@overload(exp_below_zero, jit_options=OPTIONS)  # type: ignore[arg-type]
def _choose_exp(t):  # type: ignore[no-untyped-def]
    return _exp_32 if t == types.float32 else _exp_64


@part
def log1p_above_zero(u):  # type: ignore[no-untyped-def]
    """Return log(1 + u) for a float64 u >= 0."""
    # The exponent of (1 + u) sqrt 2, and 2 to the power of minus it.
    k = (bits_of_double((1.0 + u) * SQRT_2) >> 52) - 1023
    scale = double_of_bits((1023 - k) << 52)
    f = u * scale + (scale - 1.0)
    w = f / (2.0 + f)
    square = w * w
    total = ODD[0]
    for coefficient in ODD[1:]:
        total = total * square + coefficient
    return k * LN2 + 2.0 * w * total


@part
def log_32(x):  # type: ignore[no-untyped-def]
    """Return the logarithm of a normal positive float32, to 1e-7 of its size or of 1, whichever is larger."""
    k = (bits_of_single(x * SQRT_2_32) >> SHIFT_32) - np.int32(127)
    f = x * single_of_bits((np.int32(127) - k) << SHIFT_32) - ONE_32
    w = f / (F(2.0) + f)
    square = w * w
    total = fused(
        fused(fused(fused(ODD_32[0], square, ODD_32[1]), square, ODD_32[2]), square, ODD_32[3]), square, ONE_32
    )
    return fused(F(k), LN2_32, F(2.0) * w * total)


@njit(inline="always")
def fast_exp(x: float) -> float:
    """Return e to the power of `x` for x <= 708; 0 for x < -708."""
    clipped = max(x, -708.0)
    power = np.int32(clipped * LOG2_E + (OFFSET + 0.5)) - np.int32(OFFSET)
    n = np.float64(power)
    r = (clipped - n * FAST_HIGH) - n * FAST_LOW
    y = SERIES[0]  # to r^12: |r| <= 0.347, so the rest is below 2e-16
    for coefficient in SERIES[1:]:
        y = y * r + coefficient
    value = y * double_of_bits((np.int64(power) + 1023) << 52)
    return value if x >= -708.0 else 0.0


@njit(inline="always")
def fast_log(x: float) -> float:
    """Return the logarithm of a normal positive number, to 3e-16 of its size or of 1, whichever is larger."""
    power = (bits_of_double(x * SQRT_2) >> 52) - 1023
    f = x * double_of_bits((1023 - power) << 52) - 1.0
    w = f / (2.0 + f)
    square = w * w
    y = ODD[0]
    for coefficient in ODD[1:]:
        y = y * square + coefficient
    return np.float64(power) * LN2 + 2.0 * w * y
