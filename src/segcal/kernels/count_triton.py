"""The kernel of :mod:`segcal.kernels.reliability_triton`: blocks of voxels, read once, counted in tables.

A program of one warp takes blocks of voxels, with the arithmetic of the loops for the CPU
(:mod:`segcal.kernels.reliability_tile`), operation by operation and without fused multiplications: all counts are the
same. Where there are few classes, a thread holds those of its voxel, and sums of small probabilities too; where there
are more, they are read one after another, three times. What a voxel adds to the tables of its winner is added once, to
a table by zone, whether it is right, winner and bin, from which others are made afterwards.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment, misc"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.raw_tables import DOUBT_BASE, DOUBT_BINS, ZONES
from segcal.kernels.triton_arithmetic import exp_below_zero, log1p_above_zero
from segcal.kernels.triton_classes import load_masked

# Sums of a program: NLL, Brier score, entropy, voxels, free energy about a pivot and squared, pivot, largest, ignored.
SUMS = 9

_DOUBT_BASE, _DOUBT_BINS, _ZONES, _SUMS = (tl.constexpr(x) for x in (DOUBT_BASE, DOUBT_BINS, ZONES, SUMS))


@triton.jit
def _bin(q, size, edges_ptr):
    """Return the bin (lo, hi] of each value among bins with edges k / size, which are given."""
    i = tl.maximum(tl.minimum((q * size.to(tl.float64)).to(tl.int32), size - 1), 0)  # also of what is not a number
    lower, upper = tl.load(edges_ptr + i), tl.load(edges_ptr + i + 1)
    return i - ((q <= lower) & (i > 0)).to(tl.int32) + ((q > upper) & (i < size - 1)).to(tl.int32)


@triton.jit
def _add_class(whole, fixed, classes_at, hits_at, class_prob_at, zone, truth, c, q, above, scale, C, class_bins, edges):
    """Count a probability of a class in its bin, where it is above the first."""
    spot = (zone * C + c) * class_bins + _bin(q, class_bins, edges)
    one = above.to(tl.int32)
    tl.atomic_add(whole + classes_at + spot, one, mask=above, sem="relaxed")
    tl.atomic_add(whole + hits_at + spot, one, mask=above & (truth == c), sem="relaxed")
    tl.atomic_add(fixed + class_prob_at + spot, (q * scale + 0.5).to(tl.int64), mask=above, sem="relaxed")


@triton.jit
def count_blocks(
    z_ptr, labels_ptr, bands_ptr, reference_ptr, prediction_ptr, bins_ptr, edges_ptr, whole_ptr, fixed_ptr, low_ptr,
    sums_ptr, bad_ptr, n, stride, scale, C, total, whole_size, fixed_size, classes_at, hits_at, confusion_at, flips_at,
    doubt_at, class_prob_at, whole_winners_at, fixed_winners_at, BINNINGS: tl.constexpr, BANDED: tl.constexpr,
    COMPARED: tl.constexpr, PREDICTS: tl.constexpr, BY_CLASS: tl.constexpr, HELD: tl.constexpr, BLOCK: tl.constexpr,
    TABLES: tl.constexpr,
):  # fmt: skip
    """Count the blocks of one program; `HELD` is the number of classes if a thread holds them, else 0."""
    program, stride = tl.program_id(0).to(tl.int64), tl.cast(stride, tl.int64)
    whole, fixed = whole_ptr + program % TABLES * whole_size, fixed_ptr + program % TABLES * fixed_size
    low = low_ptr + program * _ZONES * C
    one, none = tl.full([BLOCK], 1, tl.int32), tl.zeros([BLOCK], tl.float64)
    class_bins = tl.load(bins_ptr + BINNINGS)
    zero = tl.sum(none, 0)
    nll, brier, entropy, first, second, largest, ignored = none, none, none, none, none, none, none
    seen, pivot = zero, zero
    background, foreground = (), ()
    for _ in tl.static_range(HELD if BY_CLASS else 0):
        background, foreground = background + (none,), foreground + (none,)
    for start in range(program * BLOCK, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        top = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
        bad = ~(tl.abs(top) < float("inf"))
        winner = tl.zeros([BLOCK], tl.int32)
        held = (top,)
        for c in tl.static_range(1, HELD):
            z = load_masked(z_ptr + c * stride + at, inside)
            bad = bad | ~(tl.abs(z) < float("inf"))
            winner = tl.where(z > top, c, winner)
            top = tl.maximum(top, z)
            held = held + (z,)
        if HELD == 0:
            for c in tl.range(1, C, loop_unroll_factor=4):
                z = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32)
                bad = bad | ~(tl.abs(z) < float("inf"))
                winner = tl.where(z > top, c, winner)
                top = tl.maximum(top, z)
        tl.store(bad_ptr + 0 * winner, one, mask=bad)
        if COMPARED:
            old = tl.load(reference_ptr + at, mask=inside, other=0).to(tl.int32)
            kept = tl.load(z_ptr + old * stride + at, mask=inside, other=0.0).to(tl.float32) == top
            winner = tl.where(kept, old, winner)
        if PREDICTS:
            tl.store(prediction_ptr + at, winner.to(tl.int16), mask=inside)
        y = tl.load(labels_ptr + at, mask=inside, other=-1)
        valid = inside & (y >= 0)
        truth = tl.maximum(y, 0).to(tl.int32)
        zone = tl.where(y > 0, 2, (winner > 0).to(tl.int32))
        right = (truth == winner).to(tl.int32)

        rest, square, cross = none.to(tl.float32), none.to(tl.float32), none.to(tl.float32)
        exponentials = ()
        for c in tl.static_range(HELD):
            gap = held[c] - top
            e = exp_below_zero(gap)
            exponentials = exponentials + (e,)
            rest += tl.where(winner == c, 0.0, e)
            square += e * e
            cross += e * gap
        if HELD == 0:
            for c in tl.range(C, loop_unroll_factor=4):
                gap = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32) - top
                e = exp_below_zero(gap)
                rest += tl.where(winner == c, 0.0, e)
                square += e * e
                cross += e * gap
        others = rest.to(tl.float64)
        log, inverse = log1p_above_zero(others), 1.0 / (1.0 + others)

        band = tl.load(bands_ptr + at, mask=inside, other=0).to(tl.int32) if BANDED else 0
        cell = ((band * _ZONES + zone) * 2 + right) * total
        units = (inverse * scale + 0.5).to(tl.int64)
        begin, edges = 0, edges_ptr
        for b in range(BINNINGS):
            size = tl.load(bins_ptr + b)
            slot = cell + begin + _bin(inverse, size, edges)
            tl.atomic_add(whole + slot, one, mask=valid, sem="relaxed")
            tl.atomic_add(fixed + slot, units, mask=valid, sem="relaxed")
            begin += size
            edges += size + 1
        confused = valid & (right == 0) if HELD > 0 and BY_CLASS else valid
        tl.atomic_add(whole + confusion_at + truth * C + winner, one, mask=confused, sem="relaxed")
        bits = ((others * inverse).to(tl.float32).to(tl.int32, bitcast=True) >> 20) - _DOUBT_BASE
        slot = tl.minimum(tl.maximum(bits, 0), _DOUBT_BINS - 1) * 2 + right
        tl.atomic_add(whole + doubt_at + slot, one, mask=valid, sem="relaxed")
        if COMPARED:
            kind = tl.where(old == truth, 0, tl.where(right == 1, 1, 2))
            moved = valid & (old != winner)
            tl.atomic_add(whole + flips_at + (old * C + winner) * 3 + kind, one, mask=moved, sem="relaxed")

        own = tl.load(z_ptr + truth * stride + at, mask=inside, other=0.0).to(tl.float32)
        energy = top.to(tl.float64) + log
        counted = tl.sum(valid.to(tl.int32), 0).to(tl.float64)
        if seen == 0:  # deviations are from about where the values are
            pivot = tl.sum(tl.where(valid, energy, 0.0), 0) / tl.maximum(counted, 1.0)
        score = (
            square.to(tl.float64) * inverse * inverse - 2.0 * exp_below_zero(own - top).to(tl.float64) * inverse + 1.0
        )
        away = tl.where(valid, energy - pivot, 0.0)
        nll += tl.where(valid, log - (own.to(tl.float64) - top.to(tl.float64)), 0.0)
        brier += tl.where(valid, score, 0.0)
        entropy += tl.where(valid, log - cross.to(tl.float64) * inverse, 0.0)
        first += away
        second += away * away
        largest = tl.maximum(largest, tl.where(valid, tl.abs(energy), 0.0))
        seen += counted
        ignored += (inside & (y < 0)).to(tl.float64)

        if BY_CLASS:
            edge = tl.load(edges + 1)
            zone = tl.where(valid, zone, -1)
            if HELD > 0:
                spot = ((zone * 2 + right) * C + winner) * class_bins + _bin(inverse, class_bins, edges)
                tl.atomic_add(whole + whole_winners_at + spot, one, mask=valid, sem="relaxed")
                tl.atomic_add(fixed + fixed_winners_at + spot, units, mask=valid, sem="relaxed")
                grown, more, pending = (), (), 0 * one
                for c in tl.static_range(HELD):
                    q = exponentials[c].to(tl.float64) * inverse
                    above = valid & (q > edge)
                    small = tl.where(above, 0.0, q)
                    grown = grown + (background[c] + tl.where(zone == 0, small, 0.0),)
                    more = more + (foreground[c] + tl.where(zone == 2, small, 0.0),)
                    pending += (above & (winner != c)).to(tl.int32) << c
                while tl.max(pending, 0) > 0:  # one class of each voxel after another, few at most
                    last = pending & -pending
                    rival = (last.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
                    left = pending > 0
                    lower = load_masked(z_ptr + tl.maximum(rival, 0) * stride + at, left) - top
                    share = exp_below_zero(lower).to(tl.float64) * inverse
                    _add_class(whole, fixed, classes_at, hits_at, class_prob_at, zone, truth, rival, share, left, scale,
                               C, class_bins, edges)  # fmt: skip
                    pending -= last
                background, foreground = grown, more
                if tl.max((zone == 1).to(tl.int32), 0) > 0:  # few voxels
                    for c in tl.static_range(HELD):
                        q = exponentials[c].to(tl.float64) * inverse
                        small = tl.where((zone == 1) & (q <= edge), q, 0.0)
                        tl.atomic_add(low + C + c, tl.sum(small, 0), sem="relaxed")
            else:
                for c in tl.range(C, loop_unroll_factor=2):
                    gap = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32) - top
                    q = exp_below_zero(gap).to(tl.float64) * inverse
                    above = valid & (q > edge)
                    small = tl.where(above, 0.0, q)
                    for code in tl.static_range(_ZONES):
                        here = zone == code
                        if tl.max(here.to(tl.int32), 0) > 0:
                            tl.atomic_add(low + code * C + c, tl.sum(tl.where(here, small, 0.0), 0), sem="relaxed")
                    if tl.max(above.to(tl.int32), 0) > 0:
                        _add_class(whole, fixed, classes_at, hits_at, class_prob_at, zone, truth, c, q, above, scale, C,
                                   class_bins, edges)  # fmt: skip
    for c in tl.static_range(HELD if BY_CLASS else 0):
        tl.store(low + c, tl.sum(background[c], 0))
        tl.store(low + 2 * C + c, tl.sum(foreground[c], 0))
    own_sums = sums_ptr + program * _SUMS
    tl.store(own_sums, tl.sum(nll, 0))
    tl.store(own_sums + 1, tl.sum(brier, 0))
    tl.store(own_sums + 2, tl.sum(entropy, 0))
    tl.store(own_sums + 3, seen)
    tl.store(own_sums + 4, tl.sum(first, 0))
    tl.store(own_sums + 5, tl.sum(second, 0))
    tl.store(own_sums + 6, pivot)
    tl.store(own_sums + 7, tl.max(largest, 0))
    tl.store(own_sums + 8, tl.sum(ignored, 0))
