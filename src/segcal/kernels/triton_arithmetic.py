"""Exponential and logarithm for kernels of CUDA devices, operation by operation those of the CPU.

With multiplications that are not fused (``enable_fp_fusion=False``) every bit is that of
:mod:`segcal.kernels.exponential`. The exponential is monotone for all float32 values, which sums of them inherit.
"""

import triton
import triton.language as tl

from segcal.kernels import exponential as cpu

_FLOOR, _ROUND = tl.constexpr(float(cpu.FLOOR_32)), tl.constexpr(float(cpu.ROUND_32))
_LOG2_E, _LN2, _SQRT_2 = tl.constexpr(float(cpu.LOG2_E_32)), tl.constexpr(cpu.LN2), tl.constexpr(cpu.SQRT_2)
_HIGH, _LOW = tl.constexpr(float(cpu.LN2_HIGH_32)), tl.constexpr(float(cpu.LN2_LOW_32))
_G0, _G1, _G2, _G3, _G4 = (tl.constexpr(float(g)) for g in (cpu.G0, cpu.G1, cpu.G2, cpu.G3, cpu.G4))
_ODD = tl.constexpr(tuple(cpu.ODD))


@triton.jit
def exp_below_zero(t):
    """Return e^t for float32 t <= 0, and the smallest normal number far below."""
    t = tl.where(t < _FLOOR, _FLOOR, t)
    k = (t * _LOG2_E + _ROUND) - _ROUND
    r = (t - k * _HIGH) - k * _LOW
    g = (((_G4 * r + _G3) * r + _G2) * r + _G1) * r + _G0
    return ((g * r * r + r) + 1.0) * ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def log1p_above_zero(u):
    """Return log(1 + u) for float64 u >= 0."""
    k = (((1.0 + u) * _SQRT_2).to(tl.int64, bitcast=True) >> 52) - 1023
    scale = ((1023 - k) << 52).to(tl.float64, bitcast=True)
    f = u * scale + (scale - 1.0)
    w = f / (2.0 + f)
    square = w * w
    total = tl.full(u.shape, _ODD[0], tl.float64)
    for j in tl.static_range(1, 12):
        total = total * square + _ODD[j]
    return k.to(tl.float64) * _LN2 + 2.0 * w * total
