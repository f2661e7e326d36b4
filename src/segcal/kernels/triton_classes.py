"""Steps of kernels for CUDA devices: exponential and logarithm, and the classes of a block of voxels.

The exponential is operation by operation that of the CPU. If the compiler fuses no more than what is written
(``enable_fp_fusion=False``), every bit is that of :mod:`segcal.kernels.exponential`. It is monotone for all float32
values, which sums of them inherit.

Classes are a tuple of vectors, so the compiler unrolls the loops over them. Nothing is padded, nothing is read twice,
and every class stays in a register. Where there are too many, they are read and computed again instead.

Reads and writes are in the language of the device. In Triton's there is no read of four numbers by one thread. Each of
its reads and writes also costs a compiler pass that is quadratic in the size of the kernel, minutes for a sorted one.
Triton's interpreter does not know that language, and has its own.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import os

import triton
import triton.language as tl

from segcal.kernels import exponential as cpu

PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") in ("", "0", "false"))
MOST_UNROLLED = tl.constexpr(32)  # rows of a matrix, and curves; where there are more, a loop goes through them
LARGEST_LOGIT = tl.constexpr(1e10)
_LOAD_32, _LOAD_16 = (
    tl.constexpr(f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.{kind} $0, 0; @p ld.global.{kind} $0, [$1]; }}")
    for kind in ("b32", "b16")
)
_STORE_32, _STORE_16 = (
    tl.constexpr(f"{{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.{kind} [$1], $2; mov.b32 $0, 0; }}")
    for kind in ("b32", "b16")
)
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

    With x = 2^k (1 + f) and f in [-1/3, 1/3), it is k ln 2 + f + f^2 P(f). P is a minimax fit (error 6e-9).
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
def load_masked(ptr, inside):
    """Return numbers of 16 or 32 bits as float32, zeros outside."""
    if PTX:
        kind: tl.constexpr = ptr.dtype.element_ty
        whole: tl.constexpr = kind.primitive_bitwidth == 32
        bits = tl.inline_asm_elementwise(
            _LOAD_32 if whole else _LOAD_16, "=&r,l,r" if whole else "=&h,l,r", [ptr.to(tl.int64), inside.to(tl.int32)],
            dtype=tl.int32 if whole else tl.int16, is_pure=True, pack=1,
        )  # fmt: skip
        return bits.to(kind, bitcast=True).to(tl.float32)
    return tl.load(ptr, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_masked(ptr, value, inside):
    """Write numbers of 16 or 32 bits, where inside."""
    kind: tl.constexpr = ptr.dtype.element_ty
    if PTX:
        whole: tl.constexpr = kind.primitive_bitwidth == 32
        bits = value.to(kind).to(tl.int32 if whole else tl.int16, bitcast=True)
        tl.inline_asm_elementwise(
            _STORE_32 if whole else _STORE_16, "=r,l,r,r" if whole else "=r,l,h,r",
            [ptr.to(tl.int64), bits, inside.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(ptr, value.to(kind), mask=inside)


@triton.jit
def load(ptr):
    """Return numbers of 16 or 32 bits as float32."""
    if PTX:
        kind: tl.constexpr = ptr.dtype.element_ty
        whole: tl.constexpr = kind.primitive_bitwidth == 32
        bits = tl.inline_asm_elementwise(
            "ld.global.b32 $0, [$1];" if whole else "ld.global.b16 $0, [$1];", "=r,l" if whole else "=h,l",
            [ptr.to(tl.int64)], dtype=tl.int32 if whole else tl.int16, is_pure=True, pack=1,
        )  # fmt: skip
        return bits.to(kind, bitcast=True).to(tl.float32)
    return tl.load(ptr).to(tl.float32)


@triton.jit
def look_up(ptr):
    """Return numbers of 32 bits from a table."""
    if PTX:
        bits = tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [ptr.to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1
        )
        return bits.to(ptr.dtype.element_ty, bitcast=True)
    return tl.load(ptr)


@triton.jit
def look_up_four(ptr):
    """Return four numbers that lie in a row from each pointer."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [ptr.to(tl.int64)],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def read_classes(z_ptr, bad_ptr, start, stride, inside, C: tl.constexpr):
    """Return logits of a block by class, the largest, and its class; note numbers that cannot be computed with."""
    z, wrong = (), inside & ~inside
    top = tl.where(inside, -float("inf"), 0.0)
    for k in tl.static_range(C):
        x = load_masked(z_ptr + tl.cast(k, tl.int64) * stride + start, inside)
        wrong = wrong | ~(tl.abs(x) <= LARGEST_LOGIT)
        top = tl.maximum(top, x)
        z = z + (x,)
    tl.store(bad_ptr + tl.where(wrong, 0, 0), 1, mask=wrong)
    # Where nothing can be computed with no class is the largest, and tables must not be read past their end.
    winner = tl.where(wrong, C - 1, C - 1)
    for k in tl.static_range(C - 1):
        winner = tl.where(z[C - 2 - k] == top, C - 2 - k, winner)
    return z, top, winner


@triton.jit
def scan_classes(start, stride, bad_ptr, inside, C: tl.constexpr):
    """Return the largest logit and its class, one class after another, as :func:`read_classes` does."""
    top, wrong = tl.where(inside, -float("inf"), 0.0), inside & ~inside
    winner = tl.where(inside, 0, 0)
    for k in range(C):
        x = load_masked(start + tl.cast(k, tl.int64) * stride, inside)
        wrong = wrong | ~(tl.abs(x) <= LARGEST_LOGIT)
        winner = tl.where(x > top, k, winner)
        top = tl.maximum(top, x)
    tl.store(bad_ptr + winner * 0, 1, mask=wrong)
    return top, winner


@triton.jit
def write_classes(out_ptr, start, stride, inside, s, most, log, winner, lead, C: tl.constexpr, KEEPS: tl.constexpr,
                  NORMALISES: tl.constexpr):  # fmt: skip
    """Write scores, of which `most` is the largest, normalised.

    With `KEEPS` the winner is kept where only rounding made it another class. If it is 2, classes as high as the winner
    are lowered too. A class that is above by more than rounding stays there: a broken promise is not hidden.
    """
    kind: tl.constexpr = out_ptr.dtype.element_ty
    limit = float("inf")
    if NORMALISES:
        shown = ()
        for k in tl.static_range(C):
            shown = shown + ((s[k] - log).to(kind).to(tl.float32),)
        if KEEPS:
            most = (most - log).to(kind).to(tl.float32)
            first, last, own = winner, winner, most
            for k in tl.static_range(C):
                first = tl.where(shown[C - 1 - k] >= most, C - 1 - k, first)
                own = tl.where(winner == k, shown[k], own)
                if KEEPS == 2:
                    last = tl.where(shown[k] >= most, k, last)
            lost = ((first != winner) | (last != winner)) & (most <= own - own * lead)
            limit = tl.where(lost, own + own * lead, float("inf"))
    else:
        shown = s
    for k in tl.static_range(C):
        store_masked(out_ptr + tl.cast(k, tl.int64) * stride + start, tl.minimum(shown[k], limit), inside)
    if NORMALISES and KEEPS:
        store_masked(out_ptr + winner.to(tl.int64) * stride + start, own, inside & lost)


@triton.jit
def write_twice(out_ptr, start, stride, inside, SCORE: tl.constexpr, given, SIZES: tl.constexpr, winner, lead,
                C: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr):  # fmt: skip
    """Write what :func:`write_classes` does where there are too many scores to hold: each is computed twice."""
    kind: tl.constexpr = out_ptr.dtype.element_ty
    most, total = tl.where(inside, -1e30, -1e30), tl.where(inside, 0.0, 0.0)
    for k in range(C):
        score = SCORE(k, given, SIZES)
        more = tl.maximum(most, score)
        total = total * tl.exp(most - more) + tl.exp(score - more)
        most = more
    log = most + tl.log(total) if NORMALISES else 0.0 * most
    most = (most - log).to(kind).to(tl.float32)
    first, own, place = 0 * winner + C, most, start
    for k in range(C):
        shown = (SCORE(k, given, SIZES) - log).to(kind).to(tl.float32)
        first = tl.minimum(first, tl.where(shown >= most, k, C))
        own = tl.where(winner == k, shown, own)
        store_masked(out_ptr + place, shown, inside)
        place += stride
    if NORMALISES and KEEPS:
        lost, place = inside & (first != winner) & (most <= own - own * lead), start
        for _ in range(C):
            store_masked(out_ptr + place, tl.minimum(load_masked(out_ptr + place, lost), own + own * lead), lost)
            place += stride
        store_masked(out_ptr + winner.to(tl.int64) * stride + start, own, lost)


@triton.jit
def share_of(x, rate, start):
    """Return a share that grows with x, from 0 to 1."""
    if PTX:
        return tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [x, rate, start], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.minimum(tl.maximum(tl.fma(x, rate + 0.0 * x, start + 0.0 * x), 0.0), 1.0)


@triton.jit
def largest(s, C: tl.constexpr):
    """Return the largest of all classes."""
    found = s[0]
    for k in tl.static_range(1, C):
        found = tl.maximum(found, s[k])
    return found


@triton.jit
def log_sum(s, own, C: tl.constexpr):
    """Return by how much the logarithm of the sum of exponentials is above `own`, the largest."""
    total = tl.exp(s[0] - own)
    for k in tl.static_range(1, C):
        total += tl.exp(s[k] - own)
    return tl.log(total)


@triton.jit
def weighted_sum(weight_ptr, x, C: tl.constexpr, E: tl.constexpr):
    """Return a bias and a weighted sum of all but the first of `x`; weights are given in fours, `E` maps apart."""
    found, second, third, fourth = look_up_four(weight_ptr)
    if C > 1:
        found += x[1] * second
    if C > 2:
        found += x[2] * third
    if C > 3:
        found += x[3] * fourth
    for j in tl.static_range(4, C, 4):
        first, second, third, fourth = look_up_four(weight_ptr + j * E)
        found += x[j] * first
        if j + 1 < C:
            found += x[j + 1] * second
        if j + 2 < C:
            found += x[j + 2] * third
        if j + 3 < C:
            found += x[j + 3] * fourth
    return found
