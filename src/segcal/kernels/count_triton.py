"""The kernels of :mod:`segcal.kernels.reliability_triton`: blocks of voxels, read once, counted in tables.

A program of one warp takes blocks of voxels. Its exponential is that of the loops for the CPU
(:mod:`segcal.kernels.reliability_numba`), with sums in their order wherever a bin depends on them. So all counts are
the same. Where there are few classes, a thread holds those of its voxel; where there are more, they are read one after
another, three times. A voxel is added once to the tables of its winner: to a table by band, zone, right or wrong,
winner and bin. Bins are cut by the edges of all binnings. Tables are made of it afterwards.

A processor adds and multiplies floats at twice the rate at which it compares and chooses. So a comparison decides
whether an instruction is carried out, in the language of the device, not which of two results is taken. Sums over the
lanes of a warp are in a fixed order.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment, misc"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.raw_tables import UNCERTAINTY_BASE, UNCERTAINTY_BINS, ZONES
from segcal.kernels.triton_classes import PTX, exp_below_zero, load, log1p_fused

# So many small probabilities are added in float32 before they are added in float64.
MOST_SMALL = 16
# Sums of a program: NLL, Brier score, entropy, ignored, voxels; mean of the free energy, squared deviations, largest.
SUMS = 8
# Where a search among edges begins is said for so many parts of [0, 1].
PLACES = 1024

_UNCERTAINTY_BASE, _UNCERTAINTY_BINS, _ZONES, _SUMS = (
    tl.constexpr(x) for x in (UNCERTAINTY_BASE, UNCERTAINTY_BINS, ZONES, SUMS)
)
_PLACES, _MOST_SMALL = tl.constexpr(PLACES), tl.constexpr(MOST_SMALL)


@triton.jit
def _bin(q, size, edges_ptr):
    """Return the bin (lo, hi] of each value among bins with edges k / size, which are given."""
    i = tl.maximum(
        tl.minimum((q * tl.cast(size, tl.float64)).to(tl.int32), size - 1), 0
    )  # also of what is not a number
    lower, upper = tl.load(edges_ptr + i), tl.load(edges_ptr + i + 1)
    return i - ((q <= lower) & (i > 0)).to(tl.int32) + ((q > upper) & (i < size - 1)).to(tl.int32)


@triton.jit
def _fine_bin(q, guess_ptr, fine_ptr, STEPS: tl.constexpr):
    """Return the bin of each value among those that all edges together make, from where a table says."""
    place = tl.maximum(tl.minimum((q * _PLACES).to(tl.int32), _PLACES - 1), 0)  # also of what is not a number
    i = tl.load(guess_ptr + place)
    for _ in tl.static_range(STEPS):
        i += (q > tl.load(fine_ptr + i)).to(tl.int32)
    return i


@triton.jit
def _add_packed(table, slot, q, counts, one, scale):
    """Add one to the count of a cell, and a probability to its sum: both are parts of one number."""
    tl.atomic_add(table + slot, (q * scale + 0.5).to(tl.int64) + one, mask=counts, sem="relaxed")


@triton.jit
def _add_class(packed, classes_at, zone, truth, c, q, above, one, scale, C, class_bins, edges):
    """Count a probability of a class in its bin, where it is above the first."""
    hit = (truth == c).to(tl.int32)
    slot = classes_at + ((zone * 2 + hit) * C + c) * class_bins + _bin(q, class_bins, edges)
    _add_packed(packed, slot, q, above, one, scale)


@triton.jit
def _add_below_top(gap, e, rest, equal, bit):
    """Add an exponential to those of classes below the largest, or set the bit of a class that is as large."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.eq.f32 p, $2, 0f00000000; mov.b32 $0, $4; @!p add.rn.f32 $0, $4, $3;"
            " mov.b32 $1, $5; @p or.b32 $1, $5, $6; }",
            "=&f,=&r,f,f,f,r,r", [gap, e, rest, equal, bit], dtype=(tl.float32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
    return tl.where(gap == 0, rest, rest + e), tl.where(gap == 0, equal | bit, equal)


@triton.jit
def _add_small(e, least, part, small, above, bit):
    """Add a probability that is in the first bin, or set the bit of a class that is above it."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ge.f32 p, $2, $3; mov.b32 $0, $5; @!p fma.rn.f32 $0, $2, $4, $5;"
            " mov.b32 $1, $6; @p or.b32 $1, $6, $7; }",
            "=&f,=&r,f,f,f,f,r,r", [e, least, part, small, above, bit], dtype=(tl.float32, tl.int32), is_pure=True,
            pack=1,
        )  # fmt: skip
    return tl.where(e >= least, small, tl.fma(e, part, small)), tl.where(e >= least, above | bit, above)


@triton.jit
def _add_all_small(exponentials, least, part, small, above, N: tl.constexpr):
    found = ()
    for c in tl.static_range(N):
        grown, above = _add_small(exponentials[c], least, part, small[c], above, 1 << c)
        found = found + (grown,)
    return found, above


@triton.jit
def _lowest(bits):
    """Return the number of the lowest bit that is set, 0 where none is."""
    return tl.maximum(((bits & -bits).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127, 0)


@triton.jit
def _exchanged(value, distance: tl.constexpr):
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
        found = found + (own + _exchanged(tl.where(bit, values[2 * i], values[2 * i + 1]), distance),)
    if N % 2 == 1:
        found = found + (values[N - 1] + _exchanged(values[N - 1], distance),)
    return found


@triton.jit
def _nothing(zero, N: tl.constexpr):
    """Return so many zeros."""
    found = ()
    for _ in tl.static_range(N):
        found = found + (zero,)
    return found


@triton.jit
def _add_lanes(by_zone, code, values, lane, N: tl.constexpr):
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


@triton.jit
def count_blocks(
    z_ptr, labels_ptr, bands_ptr, reference_ptr, prediction_ptr, edges_ptr, guess_ptr, fine_ptr, packed_ptr, whole_ptr,
    low_ptr, sums_ptr, bad_ptr, n, z_image, stride, room, unit, scale, C, fine, class_bins, tables, packed_size,
    whole_size, classes_at, confusion_at, flips_at, BANDED: tl.constexpr, COMPARED: tl.constexpr,
    PREDICTS: tl.constexpr, BY_CLASS: tl.constexpr, HELD: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """Count the blocks of one program; `HELD` is the number of classes if a thread holds them, else 0.

    With `MANY` there are several images, each with tables of its own, `room` numbers of 64 bits further on. Then there
    are no bands, no reference and no prediction.
    """
    program, stride = tl.program_id(0).to(tl.int64), tl.cast(stride, tl.int64)
    if MANY:  # of a single image, registers are needed for other things
        image = tl.program_id(1).to(tl.int64)
        z_ptr, labels_ptr = z_ptr + image * z_image, labels_ptr + image * n
        packed_ptr, whole_ptr = packed_ptr + image * room, whole_ptr + image * 2 * room
        low_ptr, sums_ptr = low_ptr + image * room, sums_ptr + image * room
    packed, whole = packed_ptr + program % tables * packed_size, whole_ptr + program % tables * whole_size
    low = low_ptr + program * _ZONES * C
    lane = tl.arange(0, BLOCK)
    one, none, zero = tl.full([BLOCK], 1, tl.int32), tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float32)
    nll, brier, entropy, first, second, largest = none, none, none, none, none, none
    seen, ignored, pivot = 0, 0 * one, tl.sum(none, 0)
    # Small probabilities of a zone, summed by lane for some blocks, then over lanes.
    by_zone, small, current, kept = (none, none, none), _nothing(zero, HELD if BY_CLASS else 0), 0, 0
    for start in range(program * BLOCK, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        inside = start + lane < n
        at = tl.minimum(start + lane, n - 1)
        top = load(z_ptr + at)
        wrong, winner, held = tl.fma(top, 0.0, zero), 0 * one, (top,)
        for c in tl.static_range(1, HELD):
            z = load(z_ptr + c * stride + at)
            wrong = tl.fma(z, 0.0, wrong)
            top = tl.maximum(top, z)
            held = held + (z,)
        if HELD == 0:
            for c in tl.range(1, C, loop_unroll_factor=4):
                z = load(z_ptr + c * stride + at)
                wrong = tl.fma(z, 0.0, wrong)
                winner = tl.where(z > top, c, winner)
                top = tl.maximum(top, z)
        tl.store(bad_ptr + 0 * lane, one, mask=wrong != wrong)

        rest, square, cross, equal, exponentials = zero, zero, zero, 0 * one, ()
        for c in tl.static_range(HELD):
            gap = held[c] - top
            e = exp_below_zero(gap)
            rest, equal = _add_below_top(gap, e, rest, equal, 1 << c)
            square, cross = tl.fma(e, e, square), tl.fma(e, gap, cross)
            exponentials = exponentials + (e,)
        if HELD > 0:
            winner = _lowest(equal)
        if COMPARED:
            old = tl.load(reference_ptr + at).to(tl.int32)
            winner = tl.where(load(z_ptr + old * stride + at) == top, old, winner)
        if HELD > 0:
            if tl.max(equal & (equal - 1), 0) > 0:  # of equal classes all but one count, in their place
                rest = zero
                for c in tl.static_range(HELD):
                    rest += tl.where(winner == c, 0.0, exponentials[c])
        else:
            for c in tl.range(C, loop_unroll_factor=4):
                gap = load(z_ptr + c * stride + at) - top
                e = exp_below_zero(gap)
                rest += tl.where(winner == c, 0.0, e)
                square, cross = tl.fma(e, e, square), tl.fma(e, gap, cross)
        if PREDICTS:
            tl.store(prediction_ptr + at, winner.to(tl.int16), mask=inside)
        y = tl.load(labels_ptr + at)
        valid = inside & (y >= 0)
        truth = tl.maximum(y, 0).to(tl.int32)
        zone = tl.where(y > 0, 2, (winner > 0).to(tl.int32))
        right = (truth == winner).to(tl.int32)
        others = rest.to(tl.float64)
        inverse = 1.0 / (1.0 + others)

        band = tl.load(bands_ptr + at).to(tl.int32) if BANDED else 0
        slot = (band * _ZONES + zone) * 2 + right
        if HELD > 0 and BY_CLASS:
            slot = slot * C + winner
        slot = slot * fine + _fine_bin(inverse, guess_ptr, fine_ptr, STEPS)
        _add_packed(packed, slot, inverse, valid, unit, scale)
        confused = valid & (right == 0) if HELD > 0 and BY_CLASS else valid
        tl.atomic_add(whole + confusion_at + truth * C + winner, one, mask=confused, sem="relaxed")
        bits = ((others * inverse).to(tl.float32).to(tl.int32, bitcast=True) >> 20) - _UNCERTAINTY_BASE
        slot = tl.minimum(tl.maximum(bits, 0), _UNCERTAINTY_BINS - 1) * 2 + right
        tl.atomic_add(whole + slot, one, mask=valid, sem="relaxed")
        if COMPARED:
            kind = tl.where(old == truth, 0, tl.where(right == 1, 1, 2))
            moved = valid & (old != winner)
            tl.atomic_add(whole + flips_at + (old * C + winner) * 3 + kind, one, mask=moved, sem="relaxed")

        own = load(z_ptr + truth * stride + at) - top
        log = log1p_fused(others)
        energy = top.to(tl.float64) + log
        counted = tl.sum(valid.to(tl.int32), 0)
        if seen == 0:  # deviations are from about where the values are
            pivot = tl.sum(tl.where(valid, energy, 0.0), 0) / tl.maximum(counted, 1).to(tl.float64)
        score = tl.fma(square.to(tl.float64) * inverse - 2.0 * exp_below_zero(own).to(tl.float64), inverse, none + 1.0)
        weight = valid.to(tl.float64)
        away = weight * (energy - pivot)
        nll = tl.fma(weight, log - own.to(tl.float64), nll)
        brier = tl.fma(weight, score, brier)
        entropy = tl.fma(weight, tl.fma(-cross.to(tl.float64), inverse, log), entropy)
        first += away
        second = tl.fma(away, away, second)
        largest = tl.maximum(largest, weight * tl.abs(energy))
        seen += counted
        ignored += (inside & (y < 0)).to(tl.int32)

        if BY_CLASS:
            edge = tl.load(edges_ptr + 1)
            if HELD > 0:
                # The smallest float32 that is above the edge once it is divided: next to where the edge itself is.
                least = (edge * (1.0 + others)).to(tl.float32)
                after = (least.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)
                least = tl.where(least.to(tl.float64) * inverse > edge, least, after)
                lowest, highest = tl.min(tl.where(valid, zone, 3), 0), tl.max(tl.where(valid, zone, -1), 0)
                if (lowest != current) | (kept == _MOST_SMALL):
                    by_zone = _add_lanes(by_zone, current, small, lane, HELD)
                    small = _nothing(zero, HELD)
                    current, kept = lowest, 0
                kept += 1
                part = inverse.to(tl.float32)
                of_code = tl.where(valid & (zone == lowest), part, 0.0)
                small, pending = _add_all_small(exponentials, least, of_code, small, 0 * one, HELD)
                if highest > lowest:  # rare; there and back, or the compiler would keep all comparisons for it
                    least = _exchanged(_exchanged(least, 1), 1)
                    by_zone = _add_lanes(by_zone, lowest, small, lane, HELD)
                    small = _nothing(zero, HELD)
                    for code in range(lowest + 1, highest + 1):
                        of_code = tl.where(valid & (zone == code), part, 0.0)
                        more, _ = _add_all_small(exponentials, least, of_code, small, 0 * one, HELD)
                        by_zone = _add_lanes(by_zone, code, more, lane, HELD)
                pending = tl.where(valid, pending & ~(one << winner), 0)
                while tl.max(pending, 0) > 0:  # one class of each voxel after another, few at most
                    other, left = _lowest(pending), pending > 0
                    share = exp_below_zero(load(z_ptr + other * stride + at) - top).to(tl.float64) * inverse
                    _add_class(
                        packed, classes_at, zone, truth, other, share, left, unit, scale, C, class_bins, edges_ptr
                    )
                    pending = pending & (pending - 1)
            else:
                zone = tl.where(valid, zone, -1)
                for c in tl.range(C, loop_unroll_factor=2):
                    q = exp_below_zero(load(z_ptr + c * stride + at) - top).to(tl.float64) * inverse
                    above = valid & (q > edge)
                    under = tl.where(above, 0.0, q)
                    for code in tl.static_range(_ZONES):
                        here = zone == code
                        if tl.max(here.to(tl.int32), 0) > 0:
                            tl.atomic_add(low + code * C + c, tl.sum(tl.where(here, under, 0.0), 0), sem="relaxed")
                    if tl.max(above.to(tl.int32), 0) > 0:
                        _add_class(packed, classes_at, zone, truth, c, q, above, unit, scale, C, class_bins, edges_ptr)
    if HELD > 0 and BY_CLASS:
        by_zone = _add_lanes(by_zone, current, small, lane, HELD)
        own_class = (lane >> 4) + (lane >> 2 & 2) + (lane & 4) + (lane << 2 & 8) + (lane << 4 & 16)
        for z in tl.static_range(_ZONES):
            tl.store(low + z * C + own_class, by_zone[z], mask=own_class < C)
    own_sums, count, moved = sums_ptr + program * _SUMS, tl.maximum(seen, 1).to(tl.float64), tl.sum(first, 0)
    tl.store(own_sums, tl.sum(nll, 0))
    tl.store(own_sums + 1, tl.sum(brier, 0))
    tl.store(own_sums + 2, tl.sum(entropy, 0))
    tl.store(own_sums + 3, tl.sum(ignored, 0).to(tl.float64))
    tl.store(own_sums + 4, tl.cast(seen, tl.float64))
    tl.store(own_sums + 5, pivot + moved / count)
    tl.store(own_sums + 6, tl.maximum(tl.sum(second, 0) - moved * moved / count, 0.0))
    tl.store(own_sums + 7, tl.max(largest, 0))
