"""Sums on a CUDA device over the lanes of a warp, and over programs, in a fixed order."""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.raw_tables import ZONES
from segcal.kernels.triton_classes import PTX

# Sums of a program: NLL, Brier score, entropy, ignored, voxels; mean of the free energy, squared deviations, largest.
SUMS = 8

_ZONES, _SUMS = tl.constexpr(ZONES), tl.constexpr(SUMS)


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


@triton.jit
def add_programs(
    packed_ptr, whole_ptr, low_ptr, sums_ptr, bad_ptr, row_ptr, tables, programs, packed_size, whole_size, low_size,
    shift, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the tables and sums of all programs, in their order, to one row: a part of it each.

    Counts, sums that were packed with them, other counts, sums of small probabilities; then NLL, Brier score, entropy,
    how many voxels were ignored, mean of the free energy, squared deviations from it, its largest, and whether there
    were numbers that cannot be computed with.
    """
    part, lane = tl.program_id(0), tl.arange(0, BLOCK)
    packed_parts, whole_parts = tl.cdiv(packed_size, BLOCK), tl.cdiv(whole_size, BLOCK)
    if part < packed_parts:
        column = part * BLOCK + lane
        inside = column < packed_size
        counts, units = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
        for table in range(tables):
            value = tl.load(packed_ptr + tl.cast(table, tl.int64) * packed_size + column, mask=inside, other=0)
            count = value >> shift
            counts += count
            units += value - (count << shift)
        tl.store(row_ptr + column, counts.to(tl.float64), mask=inside)
        tl.store(row_ptr + packed_size + column, units.to(tl.float64), mask=inside)
    elif part < packed_parts + whole_parts:
        column = (part - packed_parts) * BLOCK + lane
        inside = column < whole_size
        counts = tl.zeros([BLOCK], tl.int64)
        for table in range(tables):
            counts += tl.load(whole_ptr + tl.cast(table, tl.int64) * whole_size + column, mask=inside, other=0)
        tl.store(row_ptr + 2 * packed_size + column, counts.to(tl.float64), mask=inside)
    elif part < packed_parts + whole_parts + low_size:
        column = part - packed_parts - whole_parts
        total = tl.zeros([BLOCK], tl.float64)
        for start in range(0, programs, BLOCK):
            own = start + lane
            total += tl.load(low_ptr + own * low_size + column, mask=own < programs, other=0.0)
        tl.store(row_ptr + 2 * packed_size + whole_size + column, tl.sum(total, 0))
    else:
        out = row_ptr + 2 * packed_size + whole_size + low_size
        for place in tl.static_range(4):
            total = tl.zeros([BLOCK], tl.float64)
            for start in range(0, programs, BLOCK):
                own = start + lane
                total += tl.load(sums_ptr + own * _SUMS + place, mask=own < programs, other=0.0)
            tl.store(out + place, tl.sum(total, 0))
        seen, centre, largest = (
            tl.zeros([BLOCK], tl.float64),
            tl.zeros([BLOCK], tl.float64),
            tl.zeros([BLOCK], tl.float64),
        )
        for start in range(0, programs, BLOCK):
            own, inside = sums_ptr + (start + lane) * _SUMS, start + lane < programs
            count = tl.load(own + 4, mask=inside, other=0.0)
            seen += count
            centre += count * tl.load(own + 5, mask=inside, other=0.0)
            largest = tl.maximum(largest, tl.load(own + 7, mask=inside, other=0.0))
        middle, spread = tl.sum(centre, 0) / tl.maximum(tl.sum(seen, 0), 1.0), tl.zeros([BLOCK], tl.float64)
        for start in range(0, programs, BLOCK):
            own, inside = sums_ptr + (start + lane) * _SUMS, start + lane < programs
            away = tl.load(own + 5, mask=inside, other=0.0) - middle
            spread += tl.load(own + 4, mask=inside, other=0.0) * away * away + tl.load(own + 6, mask=inside, other=0.0)
        tl.store(out + 4, middle)
        tl.store(out + 5, tl.sum(spread, 0))
        tl.store(out + 6, tl.max(largest, 0))
        tl.store(out + 7, tl.load(bad_ptr).to(tl.float64))
