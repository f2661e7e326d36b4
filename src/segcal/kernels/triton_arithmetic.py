"""Exponential and logarithm for kernels of CUDA devices, and sums over the lanes of a warp, in a fixed order.

The exponential is operation by operation that of the CPU: if the compiler fuses no more than what is written
(``enable_fp_fusion=False``), every bit is that of :mod:`segcal.kernels.exponential`. It is monotone for all float32
values, which sums of them inherit.

Some steps are said in the language of the device, which Triton's interpreter does not know.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import os

import triton
import triton.language as tl

from segcal.kernels import exponential as cpu
from segcal.kernels.raw_tables import ZONES

PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") in ("", "0", "false"))
_ZONES = tl.constexpr(ZONES)
_FLOOR, _ROUND = tl.constexpr(float(cpu.FLOOR_32)), tl.constexpr(float(cpu.ROUND_32))
_LOG2_E, _LN2, _SQRT_2 = tl.constexpr(float(cpu.LOG2_E_32)), tl.constexpr(cpu.LN2), tl.constexpr(cpu.SQRT_2)
_HIGH, _LOW = tl.constexpr(float(cpu.LN2_HIGH_32)), tl.constexpr(float(cpu.LN2_LOW_32))
_G0, _G1, _G2, _G3, _G4 = (tl.constexpr(float(g)) for g in (cpu.G0, cpu.G1, cpu.G2, cpu.G3, cpu.G4))
# Of the logarithm: the bits of 2 / 3, coefficients, and ln 2 for an exponent that is left in its place.
_TWO_THIRDS, _LN2_OF_BITS = tl.constexpr(0x3F2AAAAB), tl.constexpr(cpu.LN2 / (1 << 23))
_P0, _P1, _P2, _P3 = (tl.constexpr(p) for p in (-0.499998808, 0.333329946, -0.250109732, 0.200204581))
_P4, _P5, _P6, _P7 = (tl.constexpr(p) for p in (-0.163658604, 0.138668716, -0.156265721, 0.145857558))
_ODD = tl.constexpr(tuple(cpu.ODD))


@triton.jit
def exp_below_zero(t):
    """Return e^t for float32 t <= 0, and the smallest normal number far below."""
    t = tl.maximum(t, _FLOOR)
    shifted = tl.fma(t, _LOG2_E, _ROUND)
    k = shifted - _ROUND
    r = tl.fma(k, -_LOW, tl.fma(k, -_HIGH, t))
    g = tl.fma(tl.fma(tl.fma(tl.fma(r, _G4, _G3), r, _G2), r, _G1), r, _G0)
    # The last bits of the sum are those of the exponent: no conversion is needed.
    scale = (shifted.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return (tl.fma(g * r, r, r) + 1.0) * scale


@triton.jit
def log_normal(x):
    """Return log x of positive normal float32 numbers.

    With x = 2^k (1 + f) and f in [-1/3, 1/3), it is k ln 2 + f + f^2 P(f); P is a minimax fit (error 6e-9).
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _TWO_THIRDS) & -(1 << 23)
    f = (bits - exponent).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(f, _P7, _P6)
    p = tl.fma(tl.fma(tl.fma(p, f, _P5), f, _P4), f, _P3)
    p = tl.fma(tl.fma(tl.fma(p, f, _P2), f, _P1), f, _P0)
    return tl.fma(exponent.to(tl.float32), _LN2_OF_BITS, tl.fma(p, f * f, f))


@triton.jit
def log1p_fused(u):
    """Return log(1 + u) for float64 u >= 0 as the CPU does, but for the last bits: multiplications are fused."""
    k = (((1.0 + u) * _SQRT_2).to(tl.int64, bitcast=True) >> 52) - 1023
    scale = ((1023 - k) << 52).to(tl.float64, bitcast=True)
    f = tl.fma(u, scale, scale - 1.0)
    inverse = (1.0 / (2.0 + f).to(tl.float32)).to(tl.float64)
    inverse = tl.fma(tl.fma(-inverse, 2.0 + f, 1.0), inverse, inverse)
    w = f * tl.fma(tl.fma(-inverse, 2.0 + f, 1.0), inverse, inverse)
    square = w * w
    total = tl.full(u.shape, _ODD[0], tl.float64)
    for j in tl.static_range(1, 12):  # plain numbers would be of float32
        total = tl.fma(total, square, tl.full(u.shape, _ODD[j], tl.float64))
    return tl.fma(k.to(tl.float64), tl.full(u.shape, _LN2, tl.float64), 2.0 * w * total)


@triton.jit
def exchanged(value, distance: tl.constexpr):
    """Return to each of 32 lanes the float32 of another: the one whose number differs in one bit."""
    if PTX:
        return tl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;", "=f,f,r", [value, distance], dtype=tl.float32,
            is_pure=True, pack=1,
        )  # fmt: skip
    return tl.gather(value, tl.arange(0, 32) ^ distance, 0)


@triton.jit
def _folded(values, bit, distance: tl.constexpr, N: tl.constexpr):
    """Return half as many values, each of two lanes: this lane's and another's, of every two one or the other."""
    found = ()
    for i in tl.static_range(N // 2):
        own = tl.where(bit, values[2 * i + 1], values[2 * i])
        found = found + (own + exchanged(tl.where(bit, values[2 * i], values[2 * i + 1]), distance),)
    if N % 2 == 1:
        found = found + (values[N - 1] + exchanged(values[N - 1], distance),)
    return found


@triton.jit
def nothing(zero, N: tl.constexpr):
    """Return so many zeros."""
    found = ()
    for _ in tl.static_range(N):
        found = found + (zero,)
    return found


@triton.jit
def add_lanes(by_zone, code, values, lane, N: tl.constexpr):
    """Add sums over all lanes to those of a zone: each lane has that of one value, its own number in reversed bits."""
    found = _folded(values, (lane & 16) != 0, 16, N)
    found = _folded(found, (lane & 8) != 0, 8, (N + 1) // 2)
    found = _folded(found, (lane & 4) != 0, 4, (N + 3) // 4)
    found = _folded(found, (lane & 2) != 0, 2, (N + 7) // 8)
    total = _folded(found, (lane & 1) != 0, 1, (N + 15) // 16)[0].to(tl.float64)
    sums = ()
    for z in tl.static_range(_ZONES):
        sums = sums + (by_zone[z] + tl.where(code == z, total, 0.0),)
    return sums
