r"""Exponential and logarithm of a row of numbers, in a form that compilers turn into vector instructions.

For :math:`t \le 0`, with :math:`k` the whole number nearest to :math:`t / \ln 2` and :math:`r = t - k \ln 2`,

.. math:: e^t = 2^k e^r, \qquad e^r = 1 + r + r^2 g(r), \qquad |r| \le \tfrac12 \ln 2 .

:math:`\ln 2` is subtracted in two parts, of which the first has few bits, so that :math:`k` times it is exact;
:math:`2^k` is written as bits. :math:`g` is a polynomial: for float32 a minimax fit of degree 4 (relative error of
:math:`e^r` 3e-9), for float64 the Taylor series to degree 11 (below 1e-17). Numbers are rounded to nearest by adding
and subtracting 1.5 times the power of two at which the spacing of floats is one.

For :math:`u \ge 0`, with :math:`2^k` such that :math:`1 + f = (1 + u) 2^{-k}` is near 1 and :math:`w = f / (2 + f)`,

.. math:: \log(1 + u) = k \ln 2 + 2 \sum_{j=0}^{11} \frac{w^{2j+1}}{2j+1}, \qquad |w| \le 0.172,

which keeps every digit of a small :math:`u`. :math:`k = 0` below :math:`u = \sqrt2 - 1`.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from segcal.kernels.jit import OPTIONS, part

F = np.float32

# Below, e^t is not a normal number any more; it is set to the smallest one.
FLOOR_32, FLOOR_64 = F(-87.0), -708.0
ROUND_32, ROUND_64 = F(1.5 * 2**23), 1.5 * 2.0**52
LOG2_E = 1.0 / math.log(2.0)
LOG2_E_32 = F(LOG2_E)
LN2_HIGH_32 = F(355 / 512)
LN2_LOW_32 = F(math.log(2.0) - 355 / 512)
# 33 bits of ln 2; the rest is ln 2 = 0.6931471805599453094172... minus it.
LN2_HIGH_64 = math.floor(math.log(2.0) * 2**33) / 2**33
LN2_LOW_64 = (math.log(2.0) - LN2_HIGH_64) + 2.3190468138462996e-17

G0, G1, G2, G3, G4 = F(0.49999994), F(0.1666652), F(0.041668393), F(0.008368781), F(0.0013814467)
ONE_32, ONE_BITS_32, SHIFT_32 = F(1.0), np.int32(127), np.int32(23)
TAYLOR = tuple(1.0 / math.factorial(k) for k in range(13, 1, -1))
ODD = tuple(1.0 / (2 * j + 1) for j in range(11, -1, -1))
SQRT_2 = math.sqrt(2.0)
LN2 = math.log(2.0)


def exp_parts(x, top, gap, bits, n):  # type: ignore[no-untyped-def]
    """Replace ``x`` by e^r, set ``gap`` to t = x - top and ``bits`` to the bits of 2^k, for the first n entries."""
    raise NotImplementedError("only compiled loops call this")


def _exp_parts_32(x, top, gap, bits, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        t = x[v] - top[v]
        t = FLOOR_32 if t < FLOOR_32 else t
        k = (t * LOG2_E_32 + ROUND_32) - ROUND_32
        r = (t - k * LN2_HIGH_32) - k * LN2_LOW_32
        g = (((G4 * r + G3) * r + G2) * r + G1) * r + G0
        x[v] = (g * r * r + r) + ONE_32
        gap[v] = t
        bits[v] = (np.int32(k) + ONE_BITS_32) << SHIFT_32


def _exp_parts_64(x, top, gap, bits, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        t = x[v] - top[v]
        t = FLOOR_64 if t < FLOOR_64 else t
        k = (t * LOG2_E + ROUND_64) - ROUND_64
        r = (t - k * LN2_HIGH_64) - k * LN2_LOW_64
        g = TAYLOR[0]
        for coefficient in TAYLOR[1:]:
            g = g * r + coefficient
        x[v] = (g * r * r + r) + 1.0
        gap[v] = t
        bits[v] = (np.int64(k) + 1023) << 52


@overload(exp_parts, jit_options=OPTIONS)  # type: ignore[arg-type]
def _choose_exp_parts(x, top, gap, bits, n):  # type: ignore[no-untyped-def]
    return _exp_parts_32 if x.dtype == types.float32 else _exp_parts_64


@part
def log1p_row(u, log, bits, scale, n):  # type: ignore[no-untyped-def]
    """Set ``log`` to log(1 + u); ``bits`` and ``scale`` are one float64 row, seen as int64 and as float64."""
    for v in range(n):
        scale[v] = (1.0 + u[v]) * SQRT_2
    for v in range(n):
        # The exponent of (1 + u) sqrt 2, and 2 to the power of minus it.
        k = (bits[v] >> 52) - 1023
        log[v] = k * LN2
        bits[v] = (1023 - k) << 52
    for v in range(n):
        f = u[v] * scale[v] + (scale[v] - 1.0)
        w = f / (2.0 + f)
        square = w * w
        total = ODD[0]
        for coefficient in ODD[1:]:
            total = total * square + coefficient
        log[v] += 2.0 * w * total
