"""Curves of :mod:`segcal.kernels.plan` on a CUDA device: of the gap of each class, which change with what is around.

What is behind of a ramp is a share, from 0 to 1, which the device takes in one step.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.triton_classes import (
    MOST_UNROLLED,
    largest,
    load_masked,
    log_sum,
    look_up_four,
    read_classes,
    scan_classes,
    share_of,
    write_classes,
    write_twice,
)


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
