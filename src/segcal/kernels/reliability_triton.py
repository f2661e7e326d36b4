"""The pass of :mod:`segcal.kernels.reliability` on a CUDA device, in one read from memory.

A program of one warp takes blocks of voxels and goes through their classes one after another, with the arithmetic of
the loops for the CPU (:mod:`segcal.kernels.reliability_tile`), operation by operation and without fused
multiplications: all counts are the same. It has tables of its own, in which counts and fixed-point sums of confidence
are added; whole numbers do not depend on the order, and all other sums are added in a fixed one, so that results are
the same every time.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.raw_tables import DOUBT_BASE, DOUBT_BINS, ZONES, Layout, RawTables, fill_first_class_bin
from segcal.kernels.triton_arithmetic import exp_below_zero, log1p_above_zero

BLOCK = 32
# Programs are many enough to fill the device, and few enough for their tables.
MOST_PROGRAMS = 4096
MOST_BYTES = 1 << 28
WHOLE = ("cells", "class_count", "class_hits", "confusion", "flips", "doubt")
FIXED = ("confidence", "class_prob")
# Sums of a lane: NLL, Brier score, entropy, voxels, free energy about a pivot and squared, pivot, largest, ignored.
SUMS = 9

_DOUBT_BASE, _DOUBT_BINS, _ZONES, _SUMS = (tl.constexpr(x) for x in (DOUBT_BASE, DOUBT_BINS, ZONES, SUMS))


@triton.jit
def _bin(q, size):
    """Return the bin (lo, hi] of each value among bins with edges k / size."""
    count, last = size.to(tl.float64), size.to(tl.int64) - 1
    i = tl.minimum((q * count).to(tl.int64), last)
    i -= ((q <= i.to(tl.float64) / count) & (i > 0)).to(tl.int64)
    i += ((q > (i + 1).to(tl.float64) / count) & (i < last)).to(tl.int64)
    return i


@triton.jit
def _count(
    z_ptr, labels_ptr, bands_ptr, reference_ptr, prediction_ptr, bins_ptr, whole_ptr, fixed_ptr, low_ptr, sums_ptr,
    bad_ptr, n, stride, scale, C, total, whole_size, fixed_size, classes_at, hits_at, confusion_at, flips_at, doubt_at,
    class_prob_at, BINNINGS: tl.constexpr, BANDED: tl.constexpr, COMPARED: tl.constexpr, PREDICTS: tl.constexpr,
    BY_CLASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, stride = tl.program_id(0).to(tl.int64), tl.cast(stride, tl.int64)
    class_bins = tl.load(bins_ptr + BINNINGS)
    whole, fixed, low = (
        whole_ptr + program * whole_size,
        fixed_ptr + program * fixed_size,
        low_ptr + program * _ZONES * C,
    )
    one = tl.full([BLOCK], 1, tl.int32)
    nll, brier, entropy = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    first, second, largest = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    seen, ignored, pivot = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.float64)
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
        if tl.max(bad.to(tl.int32), 0) > 0:
            tl.store(bad_ptr, 1)
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

        rest, square, cross = (
            tl.zeros([BLOCK], tl.float32),
            tl.zeros([BLOCK], tl.float32),
            tl.zeros([BLOCK], tl.float32),
        )
        for c in tl.range(C, loop_unroll_factor=4):
            gap = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32) - top
            e = exp_below_zero(gap)
            rest += tl.where(winner == c, 0.0, e)
            square += e * e
            cross += e * gap
        others = rest.to(tl.float64)
        log, inverse = log1p_above_zero(others), 1.0 / (1.0 + others)

        band = tl.load(bands_ptr + at, mask=inside, other=0).to(tl.int64) if BANDED else 0
        cell = ((band * _ZONES + zone) * 2 + right) * total
        units = (inverse * scale + 0.5).to(tl.int64)
        begin = 0
        for b in range(BINNINGS):
            size = tl.load(bins_ptr + b)
            slot = cell + begin + _bin(inverse, size)
            tl.atomic_add(whole + slot, one, mask=valid, sem="relaxed")
            tl.atomic_add(fixed + slot, units, mask=valid, sem="relaxed")
            begin += size
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
        fresh = (seen == 0) & valid  # the first that a lane sees is its pivot
        pivot = tl.where(fresh, energy, pivot)
        nll += tl.where(valid, log - (own.to(tl.float64) - top.to(tl.float64)), 0.0)
        score = (
            square.to(tl.float64) * inverse * inverse - 2.0 * exp_below_zero(own - top).to(tl.float64) * inverse + 1.0
        )
        brier += tl.where(valid, score, 0.0)
        entropy += tl.where(valid, log - cross.to(tl.float64) * inverse, 0.0)
        away = tl.where(valid, energy - pivot, 0.0)
        first += away
        second += away * away
        largest = tl.maximum(largest, tl.where(valid, tl.abs(energy), 0.0))
        seen += valid.to(tl.int64)
        ignored += (inside & (y < 0)).to(tl.int64)

        if BY_CLASS:
            edge = 1.0 / class_bins.to(tl.float64)
            for c in tl.range(C, loop_unroll_factor=2):
                gap = tl.load(z_ptr + c * stride + at, mask=inside, other=0.0).to(tl.float32) - top
                q = exp_below_zero(gap).to(tl.float64) * inverse
                small = tl.where(valid & (q <= edge), q, 0.0)
                for code in tl.static_range(_ZONES):
                    here = zone == code
                    if tl.max((here & valid).to(tl.int32), 0) > 0:
                        tl.atomic_add(low + code * C + c, tl.sum(tl.where(here, small, 0.0), 0), sem="relaxed")
                above = valid & (q > edge)
                if tl.max(above.to(tl.int32), 0) > 0:
                    spot = (zone * C + c) * class_bins + _bin(q, class_bins)
                    tl.atomic_add(whole + classes_at + spot, one, mask=above, sem="relaxed")
                    tl.atomic_add(whole + hits_at + spot, one, mask=above & (truth == c), sem="relaxed")
                    tl.atomic_add(
                        fixed + class_prob_at + spot, (q * scale + 0.5).to(tl.int64), mask=above, sem="relaxed"
                    )
    lane = (sums_ptr + program * _SUMS * BLOCK) + tl.arange(0, BLOCK)
    tl.store(lane, nll)
    tl.store(lane + BLOCK, brier)
    tl.store(lane + 2 * BLOCK, entropy)
    tl.store(lane + 3 * BLOCK, seen.to(tl.float64))
    tl.store(lane + 4 * BLOCK, first)
    tl.store(lane + 5 * BLOCK, second)
    tl.store(lane + 6 * BLOCK, pivot)
    tl.store(lane + 7 * BLOCK, largest)
    tl.store(lane + 8 * BLOCK, ignored.to(tl.float64))


def count_voxels(
    scores: Tensor,
    labels: Tensor,
    layout: Layout,
    bands: np.ndarray | None = None,
    reference: np.ndarray | None = None,
    prediction: np.ndarray | None = None,
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    voxels, device, classes = labels.numel(), scores.device, layout.num_classes
    if voxels == 0:
        return RawTables.zeros(layout)
    flat = scores.detach().reshape(classes, voxels).contiguous()
    given = [None if x is None else torch.from_numpy(x).to(device) for x in (bands, reference)]
    made = None if prediction is None else torch.empty(voxels, dtype=torch.int16, device=device)
    empty = RawTables.zeros(layout)
    whole_at, whole_size = _places(empty, WHOLE)
    fixed_at, fixed_size = _places(empty, FIXED)
    each = 4 * whole_size + 8 * (fixed_size + ZONES * classes + SUMS * BLOCK)
    programs = max(1, min(triton.cdiv(voxels, BLOCK), MOST_PROGRAMS, MOST_BYTES // each))
    whole = torch.zeros(programs, whole_size, dtype=torch.int32, device=device)
    fixed = torch.zeros(programs, fixed_size, dtype=torch.int64, device=device)
    low = torch.zeros(programs, ZONES * classes, dtype=torch.float64, device=device)
    sums = torch.empty(programs, SUMS, BLOCK, dtype=torch.float64, device=device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    scale = 2.0 ** (61 - math.ceil(math.log2(triton.cdiv(voxels, programs) + BLOCK)))
    bins = torch.tensor([*layout.bins, layout.class_bins], dtype=torch.int32, device=device)
    y = labels.reshape(-1).to(device)
    nothing = [bins if x is None else x for x in (*given, made)]
    _count[(programs,)](
        flat, y, *nothing, bins, whole, fixed, low, sums, bad, voxels, flat.stride(0), scale, classes,
        sum(layout.bins), whole_size, fixed_size,
        *(whole_at[name] for name in WHOLE[1:]), fixed_at["class_prob"], len(layout.bins), bands is not None,
        reference is not None, prediction is not None, layout.class_bins > 0, BLOCK, num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip
    if bool(bad):
        check_finite(scores, "scores")
    if prediction is not None and made is not None:
        prediction[:] = made.cpu().numpy()
    tables = RawTables.zeros(layout)
    for name, values in (
        *_parts(whole.sum(0, dtype=torch.int64), empty, WHOLE),
        *_parts(fixed.double().sum(0) / scale, empty, FIXED),
    ):
        getattr(tables, name)[...] = values
    if layout.class_bins:
        tables.class_prob[:, :, 0] += low.sum(0).cpu().numpy().reshape(ZONES, classes)
        fill_first_class_bin(tables)
    _add_sums(tables, sums)
    return tables


def _places(tables: RawTables, names: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return where each table begins among those of a program, and the size of all."""
    ends = np.cumsum([0, *(getattr(tables, name).size for name in names)])
    return {name: int(start) for name, start in zip(names, ends, strict=False)}, int(ends[-1])


def _parts(values: Tensor, tables: RawTables, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each table of a row of tables."""
    row, begin = values.cpu().numpy(), 0
    for name in names:
        shape = getattr(tables, name).shape
        size = int(np.prod(shape))
        yield name, row[begin : begin + size].reshape(shape)
        begin += size


def _add_sums(tables: RawTables, sums: Tensor) -> None:
    """Add the sums of all lanes; means and squared deviations of the free energy are merged."""
    nll, brier, entropy, seen, first, second, pivot, largest, ignored = sums.unbind(1)
    count = seen.clamp(min=1)
    mean = pivot + first / count
    total = seen.sum()
    centre = (seen * mean).sum() / total.clamp(min=1)
    spread = (second - first.square() / count).clamp(min=0) + seen * (mean - centre).square()
    found = torch.stack([nll.sum(), brier.sum(), entropy.sum(), centre, spread.sum(), largest.max(), ignored.sum()])
    row = found.cpu().numpy()
    tables.sums[:], tables.energy[:], tables.offset[:], tables.ignored[:] = row[:3], row[3:5], row[5], round(row[6])
