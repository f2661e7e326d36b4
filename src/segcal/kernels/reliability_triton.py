"""The pass of :mod:`segcal.kernels.reliability` on a CUDA device.

Counts and fixed-point sums of confidence are added in tables that some programs share; whole numbers do not depend on
the order. All other sums are a program's own, and are added in a fixed order, so that results are the same every time.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.count_triton import SUMS, count_blocks
from segcal.kernels.raw_tables import ZONES, Layout, Map, RawTables, fill_first_class_bin

BLOCK, HELD_BLOCK = 64, 32
MOST_HELD = 24
# Programs fill the device some times over; tables are many enough that programs seldom wait for each other.
MOST_PROGRAMS = 2048
TABLES = 64
WHOLE = ("cells", "class_count", "class_hits", "confusion", "flips", "doubt")
FIXED = ("confidence", "class_prob")


def count_voxels(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    if labels.numel() == 0:
        return RawTables.zeros(layout)
    with torch.cuda.device_of(scores):
        return _count(scores, labels, layout, bands, reference, prediction)


def _count(scores: Tensor, labels: Tensor, layout: Layout, bands: Map, reference: Map, prediction: Map) -> RawTables:
    voxels, device, classes = labels.numel(), scores.device, layout.num_classes
    tables = RawTables.zeros(layout)
    flat = scores.detach().reshape(classes, voxels).contiguous()
    given = [None if x is None else torch.from_numpy(x).to(device) for x in (bands, reference)]
    made = None if prediction is None else torch.empty(voxels, dtype=torch.int16, device=device)
    whole_at, whole_size = _places(tables, WHOLE)
    fixed_at, fixed_size = _places(tables, FIXED)
    held = classes if classes <= MOST_HELD else 0
    block = HELD_BLOCK if held else BLOCK
    of_winners = (ZONES, 2, held, layout.class_bins)
    winners = math.prod(of_winners)
    programs = min(triton.cdiv(voxels, block), MOST_PROGRAMS)
    whole = torch.zeros(TABLES, whole_size + winners, dtype=torch.int32, device=device)
    fixed = torch.zeros(TABLES, fixed_size + winners, dtype=torch.int64, device=device)
    low = torch.zeros(programs, ZONES * classes, dtype=torch.float64, device=device)
    sums = torch.empty(programs, SUMS, dtype=torch.float64, device=device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    # No more voxels than this are added in one table.
    most = triton.cdiv(programs, TABLES) * triton.cdiv(triton.cdiv(voxels, block), programs) * block
    scale = 2.0 ** (61 - math.ceil(math.log2(most)))
    bins, edges = _bins((*layout.bins, layout.class_bins), device)
    y = labels.reshape(-1).to(device)
    nothing = [bins if x is None else x for x in (*given, made)]
    count_blocks[(programs,)](
        flat, y, *nothing, bins, edges, whole, fixed, low, sums, bad, voxels, flat.stride(0), scale, classes,
        sum(layout.bins), whole_size + winners, fixed_size + winners,
        *(whole_at[name] for name in WHOLE[1:]), fixed_at["class_prob"], whole_size, fixed_size, len(layout.bins),
        bands is not None, reference is not None, prediction is not None, layout.class_bins > 0, held, block, TABLES,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    # One way from the device; whole numbers are far below 2^53.
    totals = (bad, whole, fixed, low)
    found = [*(values.sum(0, dtype=torch.float64).reshape(-1) for values in totals), sums.reshape(-1)]
    row = torch.cat(found).cpu().numpy()
    parts = np.split(row, np.cumsum([len(values) for values in found])[:-1])
    if parts[0]:
        check_finite(scores, "scores")
    if prediction is not None and made is not None:
        prediction[:] = made.cpu().numpy()
    parts[2] /= scale
    for names, values in ((WHOLE, parts[1]), (FIXED, parts[2])):
        for name, part in zip(names, _split(values, tables, names), strict=True):
            getattr(tables, name)[...] = part
    if winners:
        _add_winners(tables, parts[1][whole_size:].reshape(of_winners), parts[2][fixed_size:].reshape(of_winners))
    if layout.class_bins:
        tables.class_prob[:, :, 0] += parts[3].reshape(ZONES, classes)
        fill_first_class_bin(tables)
    summed = _totals(parts[4].reshape(programs, SUMS))
    tables.sums[:], tables.energy[:], tables.offset[:] = summed[:3], summed[3:5], summed[5]
    tables.ignored[:] = round(summed[6])
    return tables


def _add_winners(tables: RawTables, counts: np.ndarray, probs: np.ndarray) -> None:
    """Add the table by zone, whether right, winner and bin to those of classes; in first bins nothing is counted."""
    classes = np.arange(counts.shape[2])
    tables.confusion[classes, classes] += counts[:, 1].sum((0, 2)).astype(tables.confusion.dtype)
    tables.class_count[:, :, 1:] += counts.sum(1)[..., 1:].astype(tables.class_count.dtype)
    tables.class_hits[:, :, 1:] += counts[:, 1, :, 1:].astype(tables.class_hits.dtype)
    tables.class_prob[:, :, 1:] += probs.sum(1)[..., 1:]


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


def _totals(sums: np.ndarray) -> tuple[float, ...]:
    """Return NLL, Brier score, entropy, mean and spread of the free energy, its largest, and how many are ignored.

    Means and squared deviations of the programs are merged.
    """
    nll, brier, entropy, seen, first, second, pivot, largest, ignored = sums.T
    count = np.maximum(seen, 1)
    mean = pivot + first / count
    centre = (seen * mean).sum() / max(seen.sum(), 1)
    spread = np.maximum(second - first**2 / count, 0) + seen * (mean - centre) ** 2
    return nll.sum(), brier.sum(), entropy.sum(), centre, spread.sum(), largest.max(), ignored.sum()
