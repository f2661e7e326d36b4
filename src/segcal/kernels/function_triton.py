"""Mixtures, tables and curves of :mod:`segcal.kernels.plan` on a CUDA device.

Mixtures and tables need no sorting: they are one function of the gap, made of steps that are monotone in floating
point. Curves change with what is around; what is behind of a ramp is a share, from 0 to 1, which the device takes in
one step.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.exponential import FLOOR_32
from segcal.kernels.plan import FIRST, PLACES, SHIFT
from segcal.kernels.triton_arithmetic import exp_below_zero, log_normal
from segcal.kernels.triton_classes import (
    MOST_UNROLLED,
    largest,
    load_masked,
    log_sum,
    look_up,
    look_up_four,
    read_classes,
    scan_classes,
    share_of,
    write_classes,
    write_twice,
)

_SHIFT, _FIRST, _PLACES = tl.constexpr(SHIFT), tl.constexpr(FIRST), tl.constexpr(PLACES)
_FLOOR = tl.constexpr(float(FLOOR_32))


@triton.jit
def mixture(
    z_ptr, out_ptr, bad_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
):  # fmt: skip
    """Take the logarithm of a mixture of probabilities."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    beta = tl.load(numbers_ptr)
    tempered, plain = (), ()
    first, second = 0.0 * top, 0.0 * top
    for k in tl.static_range(C):
        gap = z[k] - top
        t, e = exp_below_zero(gap * beta), exp_below_zero(gap)
        first += t
        second += e
        tempered, plain = tempered + (t,), plain + (e,)
    first, second = tl.load(numbers_ptr + 1) / first, tl.load(numbers_ptr + 2) / second
    uniform = tl.load(numbers_ptr + 3)
    s = ()
    for k in tl.static_range(C):
        s = s + (log_normal(tempered[k] * first + plain[k] * second + uniform),)
    own = largest(s, C)
    # Probabilities that are mixed sum to one.
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, 0.0 * top, winner, lead, C, KEEPS, NORMALISES)


@triton.jit
def table_of_function(
    z_ptr, out_ptr, bad_ptr, points_ptr, pieces_ptr, guess_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image,
    out_class, out_voxel, lead, C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
):  # fmt: skip
    """Take the logarithm of a table at a probability."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    e = ()
    total = 0.0 * top
    for k in tl.static_range(C):
        gap = z[k] - top
        one = tl.where(gap > _FLOOR, exp_below_zero(gap), 0.0)
        total += one
        e = e + (one,)
    inverse = 1.0 / tl.maximum(total, 1.0)  # less only of what is refused, of which tables must not be read either
    p, below = (), ()
    for k in tl.static_range(C):
        q = e[k] * inverse
        low_half = q < 0.5
        place = tl.maximum(tl.where(low_half, q, 1.0 - q).to(tl.int32, bitcast=True) >> _SHIFT, _FIRST)
        place = tl.where(low_half, place, 2 * (_PLACES + _FIRST) - 1 - place)
        p, below = p + (q,), below + (look_up(guess_ptr - _FIRST + place),)
    step = tl.load(guess_ptr + 2 * _PLACES)
    while step > 0:
        nearer = ()
        for k in tl.static_range(C):
            point = look_up(points_ptr + (step - 1) + below[k])
            nearer = nearer + (tl.where(point < p[k], below[k] + step, below[k]),)
        below = nearer
        step = step // 2
    values = ()
    slope_of_all, floor = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    for k in tl.static_range(C):
        low, slope, low_height, high_height = look_up_four(pieces_ptr + 4 * below[k])
        # Rounding may lift the end of a piece above the start of the next.
        found = tl.minimum(tl.maximum(p[k] - low, 0.0) * slope + low_height, high_height)
        values = values + (tl.maximum(found + slope_of_all * p[k], floor),)
    most, total = largest(values, C), 0.0 * top
    s = ()
    for k in tl.static_range(C):
        total += values[k]
        s = s + (log_normal(values[k]),)
    own, log = log_normal(most), log_normal(total)
    if not NORMALISES:  # of equal values, the winner's is to be above
        cut = ()
        for k in tl.static_range(C):
            cut = cut + (tl.where(winner == k, s[k], tl.minimum(s[k], own - lead)),)
        s = cut
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, 2 if KEEPS else 0, NORMALISES)


@triton.jit
def _curve(k, given, SIZES: tl.constexpr):
    """Return how much lower a class is than the winner, by a curve of its gap."""
    z, top, winner, pairs_ptr, ramps_ptr, slopes = given
    C: tl.constexpr = SIZES[0]
    RAMPS: tl.constexpr = SIZES[1]
    WINNERS: tl.constexpr = SIZES[2]
    GROUP: tl.constexpr = SIZES[3]
    GROUPS: tl.constexpr = SIZES[4]
    if C > MOST_UNROLLED:
        begin, stride, inside = z
        gap = top - load_masked(begin + tl.cast(k, tl.int64) * stride, inside)
    else:
        gap = top - z[k]
    score = 0.0 * top
    fours = (0.0, 0.0, 0.0, 0.0)
    for g in tl.static_range(GROUPS):
        if WINNERS > 0 and g % 4 == 0:
            of = winner if WINNERS > 1 else 0 * winner
            fours = look_up_four(pairs_ptr + ((k * ((GROUPS + 3) // 4) + g // 4) * WINNERS + of) * 4)
        for j in tl.static_range(g * GROUP, (g + 1) * GROUP):
            if j < RAMPS:
                start, rate, width, _ = look_up_four(ramps_ptr + 4 * j)
                ramp = share_of(gap, rate, start) if j + 1 < RAMPS else tl.maximum(gap + start, 0.0)
                slope = tl.fma(fours[g % 4], width, slopes[j]) if WINNERS > 0 else slopes[j]
                score = tl.fma(-slope, ramp, score)
    return score


@triton.jit
def _shared_slopes(around_ptr, slopes_ptr, pieces_ptr, n, voxel, inside, zero, RAMPS: tl.constexpr,
                   OWNERS: tl.constexpr):  # fmt: skip
    """Return the slope of every ramp that all classes share, which changes with what is around, times its width."""
    shares = ()
    for t in tl.static_range(len(OWNERS)):
        u = load_masked(around_ptr + tl.cast(n, tl.int64) * OWNERS[t] + voxel, inside)
        shares = shares + (share_of(u, tl.load(pieces_ptr + 2 * t + 1), tl.load(pieces_ptr + 2 * t)),)
    found = ()
    for j in tl.static_range(0, RAMPS, 4):
        first, second, third, fourth = look_up_four(slopes_ptr + j)
        first, second, third, fourth = zero + first, zero + second, zero + third, zero + fourth
        for t in tl.static_range(len(OWNERS)):
            a, b, c, d = look_up_four(slopes_ptr + (1 + t) * ((RAMPS + 3) // 4 * 4) + j)
            first, second = tl.fma(shares[t], a, first), tl.fma(shares[t], b, second)
            third, fourth = tl.fma(shares[t], c, third), tl.fma(shares[t], d, fourth)
        found = found + (
            tl.maximum(first, 0.0),
            tl.maximum(second, 0.0),
            tl.maximum(third, 0.0),
            tl.maximum(fourth, 0.0),
        )
    return found


@triton.jit
def curves(
    z_ptr, out_ptr, bad_ptr, around_ptr, ramps_ptr, slopes_ptr, pieces_ptr, pairs_ptr, n, z_image, z_class, z_voxel,
    out_image, out_class, out_voxel, lead, C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr,
    NORMALISES: tl.constexpr, RAMPS: tl.constexpr, CONTEXTS: tl.constexpr, OWNERS: tl.constexpr, WINNERS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Lower every class by a curve of its gap, which changes with what is around."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    if C > MOST_UNROLLED:
        z = (z_ptr + image * z_image + voxel * z_voxel, z_class, inside)
        top, winner = scan_classes(z[0], z_class, bad_ptr, inside, C)
    else:
        z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    around = around_ptr + image * CONTEXTS * n
    slopes = _shared_slopes(around, slopes_ptr, pieces_ptr, n, voxel, inside, 0.0 * top, RAMPS, OWNERS)
    given = (z, top, winner, pairs_ptr, ramps_ptr, slopes)
    sizes: tl.constexpr = (C, RAMPS, WINNERS, GROUP, GROUPS)
    start = image * out_image + voxel * out_voxel
    if C > MOST_UNROLLED:
        write_twice(out_ptr, start, out_class, inside, _curve, given, sizes, winner, lead, C, KEEPS, NORMALISES)
    else:
        s = ()
        for k in tl.static_range(C):
            s = s + (_curve(k, given, sizes),)
        own = largest(s, C)
        log = own + log_sum(s, own, C)
        write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, KEEPS, NORMALISES)
