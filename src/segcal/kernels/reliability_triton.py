"""The pass of :mod:`segcal.kernels.reliability` on a CUDA device, in one read from memory.

A program of one warp takes blocks of voxels and goes through their classes one after another, with the arithmetic of
the loops for the CPU (:mod:`segcal.kernels.reliability_tile`), operation by operation and without fused
multiplications: all counts are the same. Counts and fixed-point sums of confidence are added in tables that some
programs share; whole numbers do not depend on the order. All other sums are a program's own, and are added in a fixed
order, so that results are the same every time.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.raw_tables import DOUBT_BASE, DOUBT_BINS, ZONES, Layout, Map, RawTables, fill_first_class_bin
from segcal.kernels.triton_arithmetic import exp_below_zero, log1p_above_zero

BLOCK = 64
# Programs fill the device some times over; tables are many enough that programs seldom wait for each other.
MOST_PROGRAMS = 2048
TABLES = 64
WHOLE = ("cells", "class_count", "class_hits", "confusion", "flips", "doubt")
FIXED = ("confidence", "class_prob")
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
def _count(
    z_ptr, labels_ptr, bands_ptr, reference_ptr, prediction_ptr, bins_ptr, edges_ptr, whole_ptr, fixed_ptr, low_ptr,
    sums_ptr, bad_ptr, n, stride, scale, C, total, whole_size, fixed_size, classes_at, hits_at, confusion_at, flips_at,
    doubt_at, class_prob_at, BINNINGS: tl.constexpr, BANDED: tl.constexpr, COMPARED: tl.constexpr,
    PREDICTS: tl.constexpr, BY_CLASS: tl.constexpr, BLOCK: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    program, stride = tl.program_id(0).to(tl.int64), tl.cast(stride, tl.int64)
    whole, fixed = whole_ptr + program % TABLES * whole_size, fixed_ptr + program % TABLES * fixed_size
    low = low_ptr + program * _ZONES * C
    one, none = tl.full([BLOCK], 1, tl.int32), tl.zeros([BLOCK], tl.float64)
    class_bins = tl.load(bins_ptr + BINNINGS)
    zero = tl.sum(none, 0)
    nll, brier, entropy, first, second, largest, pivot = zero, zero, zero, zero, zero, zero, zero
    seen, ignored = zero, zero
    for start in range(program * BLOCK, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        top = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
        bad = ~(tl.abs(top) < float("inf"))
        winner = tl.zeros([BLOCK], tl.int32)
        for c in tl.range(1, C, loop_unroll_factor=4):
            z = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32)
            bad = bad | ~(tl.abs(z) < float("inf"))
            above = z > top
            top = tl.where(above, z, top)
            winner = tl.where(above, c, winner)
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
        tl.atomic_add(whole + confusion_at + truth * C + winner, one, mask=valid, sem="relaxed")
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
        nll += tl.sum(tl.where(valid, log - (own.to(tl.float64) - top.to(tl.float64)), 0.0), 0)
        brier += tl.sum(tl.where(valid, score, 0.0), 0)
        entropy += tl.sum(tl.where(valid, log - cross.to(tl.float64) * inverse, 0.0), 0)
        first += tl.sum(away, 0)
        second += tl.sum(away * away, 0)
        largest = tl.maximum(largest, tl.max(tl.where(valid, tl.abs(energy), 0.0), 0))
        seen += counted
        ignored += tl.sum((inside & (y < 0)).to(tl.int32), 0).to(tl.float64)

        if BY_CLASS:
            edge = tl.load(edges + 1)
            zone = tl.where(valid, zone, -1)
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
                    spot = (zone * C + c) * class_bins + _bin(q, class_bins, edges)
                    tl.atomic_add(whole + classes_at + spot, one, mask=above, sem="relaxed")
                    tl.atomic_add(whole + hits_at + spot, one, mask=above & (truth == c), sem="relaxed")
                    tl.atomic_add(
                        fixed + class_prob_at + spot, (q * scale + 0.5).to(tl.int64), mask=above, sem="relaxed"
                    )
    own_sums = sums_ptr + program * _SUMS
    tl.store(own_sums, nll)
    tl.store(own_sums + 1, brier)
    tl.store(own_sums + 2, entropy)
    tl.store(own_sums + 3, seen)
    tl.store(own_sums + 4, first)
    tl.store(own_sums + 5, second)
    tl.store(own_sums + 6, pivot)
    tl.store(own_sums + 7, largest)
    tl.store(own_sums + 8, ignored)


def count_voxels(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    voxels, device, classes = labels.numel(), scores.device, layout.num_classes
    tables = RawTables.zeros(layout)
    if voxels == 0:
        return tables
    flat = scores.detach().reshape(classes, voxels).contiguous()
    given = [None if x is None else torch.from_numpy(x).to(device) for x in (bands, reference)]
    made = None if prediction is None else torch.empty(voxels, dtype=torch.int16, device=device)
    whole_at, whole_size = _places(tables, WHOLE)
    fixed_at, fixed_size = _places(tables, FIXED)
    programs = min(triton.cdiv(voxels, BLOCK), MOST_PROGRAMS)
    whole = torch.zeros(TABLES, whole_size, dtype=torch.int32, device=device)
    fixed = torch.zeros(TABLES, fixed_size, dtype=torch.int64, device=device)
    low = torch.zeros(programs, ZONES * classes, dtype=torch.float64, device=device)
    sums = torch.empty(programs, SUMS, dtype=torch.float64, device=device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    # No more voxels than this are added in one table.
    most = triton.cdiv(programs, TABLES) * triton.cdiv(triton.cdiv(voxels, BLOCK), programs) * BLOCK
    scale = 2.0 ** (61 - math.ceil(math.log2(most)))
    bins, edges = _bins((*layout.bins, layout.class_bins), device)
    y = labels.reshape(-1).to(device)
    nothing = [bins if x is None else x for x in (*given, made)]
    _count[(programs,)](
        flat, y, *nothing, bins, edges, whole, fixed, low, sums, bad, voxels, flat.stride(0), scale, classes,
        sum(layout.bins), whole_size, fixed_size,
        *(whole_at[name] for name in WHOLE[1:]), fixed_at["class_prob"], len(layout.bins), bands is not None,
        reference is not None, prediction is not None, layout.class_bins > 0, BLOCK, TABLES, num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip
    # One way from the device; whole numbers are far below 2^53.
    found = [bad, whole.sum(0), fixed.double().sum(0) / scale, low.sum(0), _totals(sums)]
    row = torch.cat([values.double() for values in found]).cpu().numpy()
    parts = np.split(row, np.cumsum([len(values) for values in found])[:-1])
    if parts[0]:
        check_finite(scores, "scores")
    if prediction is not None and made is not None:
        prediction[:] = made.cpu().numpy()
    for names, values in ((WHOLE, parts[1]), (FIXED, parts[2])):
        for name, part in zip(names, _split(values, tables, names), strict=True):
            getattr(tables, name)[...] = part
    if layout.class_bins:
        tables.class_prob[:, :, 0] += parts[3].reshape(ZONES, classes)
        fill_first_class_bin(tables)
    tables.sums[:], tables.energy[:], tables.offset[:] = parts[4][:3], parts[4][3:5], parts[4][5]
    tables.ignored[:] = round(parts[4][6])
    return tables


@functools.lru_cache(maxsize=16)
def _bins(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how many bins each table has, and the edges of all, on the device."""
    edges = torch.cat([torch.arange(size + 1, dtype=torch.float64) / max(size, 1) for size in sizes])
    return torch.tensor(sizes, dtype=torch.int32, device=device), edges.to(device)


def _places(tables: RawTables, names: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return where each table begins among all of them in a row, and the size of all."""
    ends = np.cumsum([0, *(getattr(tables, name).size for name in names)])
    return {name: int(start) for name, start in zip(names, ends, strict=False)}, int(ends[-1])


def _split(values: np.ndarray, tables: RawTables, names: Sequence[str]) -> Iterator[np.ndarray]:
    """Yield each table of a row of tables."""
    begin = 0
    for name in names:
        shape = getattr(tables, name).shape
        size = int(np.prod(shape))
        yield values[begin : begin + size].reshape(shape)
        begin += size


def _totals(sums: Tensor) -> Tensor:
    """Return NLL, Brier score, entropy, mean and spread of the free energy, its largest, and how many are ignored.

    Means and squared deviations of the programs are merged.
    """
    nll, brier, entropy, seen, first, second, pivot, largest, ignored = sums.unbind(1)
    count = seen.clamp(min=1)
    mean = pivot + first / count
    centre = (seen * mean).sum() / seen.sum().clamp(min=1)
    spread = (second - first.square() / count).clamp(min=0) + seen * (mean - centre).square()
    return torch.stack([nll.sum(), brier.sum(), entropy.sum(), centre, spread.sum(), largest.max(), ignored.sum()])
