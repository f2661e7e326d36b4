"""The pass of :mod:`segcal.kernels.reliability` on a CUDA device.

Counts and fixed-point sums of probabilities are added in tables that some programs share; whole numbers do not depend
on the order. All other sums are a program's own, and are added in a fixed order, so that results are the same every
time. Counts are those of the CPU; sums differ from its sums by less than a millionth.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.count_triton import PLACES, SUMS, count_blocks
from segcal.kernels.raw_tables import UNCERTAINTY_BINS, ZONES, Layout, Map, RawTables

BLOCK, HELD_BLOCK, ROW_BLOCK = 64, 32, 128
MOST_HELD = 24
MOST_REGISTERS = 128  # of a thread: with more, too few threads would be there to wait for memory
MOST_PROGRAMS = 8192  # the device is filled some times over
# Programs that share a table are few, so that they rarely wait for each other, and that a count and a sum of
# probabilities, to 2^-29 or so, fit into one number.
FEWEST_TABLES, TABLE_VOXELS, MOST_CELLS = 64, 1 << 16, 1 << 23
MOST_ROOM = 1 << 24  # numbers of 64 bits for the tables of images that are counted at once

_SUMS = tl.constexpr(SUMS)


def count_voxels(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    if labels.numel() == 0:
        return RawTables.zeros(layout)
    with torch.cuda.device_of(scores):
        return _count(scores[None], labels[None], layout, bands, reference, prediction)[0]


def count_images(scores: Tensor, labels: Tensor, layout: Layout) -> list[RawTables]:
    """Count each image of ``(images, classes, *space)``, as many at once as there is room for."""
    if labels.numel() == 0:
        return [RawTables.zeros(layout) for _ in scores]
    at_once = max(1, MOST_ROOM // _Sizes.of(layout, labels[0].numel(), scores.device, False).room)
    with torch.cuda.device_of(scores):
        parts = zip(scores.split(at_once), labels.split(at_once), strict=True)
        return [found for part in parts for found in _count(*part, layout, None, None, None)]


class _Sizes(NamedTuple):
    """The layout of the tables of an image.

    Attributes:
        bins: of the layout.
        held: classes that a thread holds, or 0.
        programs: of an image.
        tables: that its programs share.
        packed: numbers of a table that hold count and sum of a cell: confidence, by winner too if a thread holds the
            classes, and, from `cells` on, of classes.
        cells: see `packed`.
        whole: counts of a table: uncertainty, confusion and flips.
        low: sums of small probabilities of a program.
        most: voxels that are added in one table, at most.
        room: numbers of 64 bits of all that.
    """

    bins: "_Bins"
    held: int
    programs: int
    tables: int
    packed: int
    cells: int
    whole: int
    low: int
    most: int
    room: int

    @classmethod
    def of(cls, layout: Layout, voxels: int, device: torch.device, compared: bool) -> "_Sizes":
        """Return the sizes for images of so many voxels."""
        classes, bins = layout.num_classes, _bins(layout, device)
        held = classes if classes <= MOST_HELD else 0
        blocks = triton.cdiv(voxels, HELD_BLOCK if held else BLOCK)
        cells = layout.bands * ZONES * 2 * (held if held and layout.class_bins else 1) * bins.fine
        packed, low = cells + ZONES * 2 * classes * layout.class_bins, ZONES * classes
        whole = 2 * UNCERTAINTY_BINS + (4 if compared else 1) * classes**2
        programs = min(blocks, MOST_PROGRAMS)
        most_tables = max(MOST_CELLS, voxels // 8) // (packed + whole // 2)
        tables = max(1, min(programs, most_tables, max(FEWEST_TABLES, triton.cdiv(voxels, TABLE_VOXELS))))
        most = triton.cdiv(programs, tables) * triton.cdiv(blocks, programs) * (HELD_BLOCK if held else BLOCK)
        room = tables * packed + programs * (low + SUMS) + triton.cdiv(tables * whole + 1, 2)
        return cls(bins, held, programs, tables, packed, cells, whole, low, most, room)


def _count(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map, reference: Map, prediction: Map
) -> list[RawTables]:
    images, voxels, device, classes = len(labels), labels[0].numel(), scores.device, layout.num_classes
    flat = scores.detach().reshape(images, classes, voxels).contiguous()
    y = labels.reshape(images, voxels).to(device).contiguous()
    given = [None if x is None else torch.from_numpy(x).to(device) for x in (bands, reference)]
    made = None if prediction is None else torch.empty(voxels, dtype=torch.int16, device=device)
    sizes = _Sizes.of(layout, voxels, device, reference is not None)
    bins, held, programs, tables, packed_size, cells, whole_size, low_size, most, room = sizes
    # A number has room for the count of the voxels that are added in one table, and for a sum of as many.
    shift, scale = 63 - most.bit_length(), 2.0 ** (63 - 2 * most.bit_length())
    parts = [tables * packed_size, programs * low_size, programs * SUMS]
    space = torch.zeros(images, room, dtype=torch.int64, device=device)
    packed, low, sums, whole = space.view(-1).tensor_split(np.cumsum(parts).tolist())
    low, sums, whole = low.view(torch.float64), sums.view(torch.float64), whole.view(torch.int32)
    bad, nothing = whole[tables * whole_size :], [bins.guess if x is None else x for x in (*given, made)]
    count_blocks[programs, images](
        flat, y, *nothing, bins.of_class, bins.guess, bins.ends, packed, whole, low, sums, bad, voxels,
        flat.stride(0), flat.stride(1), room, 1 << shift, scale, classes, bins.fine, layout.class_bins, tables,
        packed_size, whole_size, cells, 2 * UNCERTAINTY_BINS, 2 * UNCERTAINTY_BINS + classes**2, bands is not None,
        reference is not None, prediction is not None, layout.class_bins > 0, held, HELD_BLOCK if held else BLOCK,
        bins.steps, images > 1, num_warps=1, enable_fp_fusion=False, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    rows = torch.empty(images, 2 * packed_size + whole_size + low_size + SUMS, dtype=torch.float64, device=device)
    grid = triton.cdiv(packed_size, ROW_BLOCK) + triton.cdiv(whole_size, ROW_BLOCK) + low_size + 1
    _add_programs[grid, images](
        packed, whole, low, sums, bad, rows, tables, programs, packed_size, whole_size, low_size, room, shift, ROW_BLOCK
    )
    all_images = [np.zeros((images, *each.shape), each.dtype) for each in RawTables.zeros(layout)]
    found = RawTables(*all_images)  # while the device counts
    ends = np.cumsum([packed_size, packed_size, whole_size, low_size])
    counts, units, others, small, totals = np.split(rows.cpu().numpy(), ends, axis=1)
    for image in scores if totals[0, -1] else ():
        check_finite(image, "scores")
    if prediction is not None and made is not None:
        prediction[:] = made.cpu().numpy()
    _fill_whole(found, others.astype(np.int64), totals)
    _fill_bins(found, layout, bins, bool(held), (counts, units / scale), small)
    each = [RawTables(*(table[number] for table in found)) for number in range(images)]
    for one in each if layout.class_bins else ():
        one.fill_first_class_bin()
    return each


def _fill_whole(tables: RawTables, counts: np.ndarray, totals: np.ndarray) -> None:
    """Set uncertainty, confusion and flips of all images, and the sums over all voxels."""
    pairs, cells = tables.uncertainty[0].size, tables.confusion[0].size
    tables.uncertainty[...] = counts[:, :pairs].reshape(tables.uncertainty.shape)
    tables.confusion[...] = counts[:, pairs : pairs + cells].reshape(tables.confusion.shape)
    if counts.shape[1] > pairs + cells:
        tables.flips[...] = counts[:, pairs + cells :].reshape(tables.flips.shape)
    tables.sums[:], tables.ignored[:] = totals[:, :3], totals[:, 3:4]
    tables.energy[:], tables.offset[:] = totals[:, 4:6], totals[:, 6:7]


def _fill_bins(
    tables: RawTables, layout: Layout, bins: "_Bins", held: bool, found: Sequence[np.ndarray], small: np.ndarray
) -> None:
    """Set the tables of confidence and of classes from counts and sums of probability by fine bin, and by bin.

    With classes that were held, those of winners are counted by fine bin alone, and so are voxels that are right. Of
    first bins of classes only the sum is set.
    """
    classes, by_bin, images = layout.num_classes, ZONES * 2 * layout.num_classes * layout.class_bins, len(small)
    parts = [np.split(each, [each.shape[1] - by_bin], axis=1) for each in found]
    cells = [first.reshape(images, layout.bands, ZONES, 2, -1, bins.fine) for first, _ in parts]
    for table, each in zip((tables.cells, tables.confidence), cells, strict=True):
        joined = [np.add.reduceat(each.sum(4), starts, axis=-1) for starts in bins.starts]
        table[...] = np.concatenate(joined, axis=-1)
    if not layout.class_bins:
        return
    counts, probs = (rest.reshape(images, ZONES, 2, classes, -1) for _, rest in parts)
    if held:
        more, units = (np.add.reduceat(each.sum(1), bins.class_starts, axis=-1) for each in cells)
        counts, probs = counts + more, probs + units
        diagonal = np.arange(classes)
        tables.confusion[:, diagonal, diagonal] += more[:, :, 1].sum((1, 3)).astype(np.int64)
    # In first bins nothing is counted, and what is small is summed.
    tables.class_count[..., 1:], tables.class_hits[..., 1:] = counts.sum(2)[..., 1:], counts[:, :, 1, :, 1:]
    tables.class_prob[..., 1:] = probs.sum(2)[..., 1:]
    tables.class_prob[..., 0] = small.reshape(images, ZONES, classes)


class _Bins(NamedTuple):
    """The bins of a layout, and those that the edges of all of them make.

    Attributes:
        fine: how many these are.
        ends: where each of them ends.
        guess: how many end below each of equal parts of [0, 1].
        steps: the most that end in one part.
        of_class: the edges of the bins of classes, from 0.
        starts: of each binning, with which fine bin every bin begins.
        class_starts: the same of the bins of classes.
    """

    fine: int
    ends: Tensor
    guess: Tensor
    steps: int
    of_class: Tensor
    starts: list[np.ndarray]
    class_starts: np.ndarray


@functools.lru_cache(maxsize=16)
def _bins(layout: Layout, device: torch.device) -> _Bins:
    """Return the bins of a layout, on the device."""
    edges = [np.arange(size + 1) / max(size, 1) for size in (*layout.bins, layout.class_bins)]
    ends = np.unique(np.concatenate([[1.0], *(each[1:] for each in edges)]))
    below = np.searchsorted(ends, np.arange(PLACES + 1) / PLACES)
    starts = [np.searchsorted(ends, each[:-1], side="right") for each in edges]
    on_device = (torch.from_numpy(x).to(device) for x in (ends, below[:-1].astype(np.int32), edges[-1]))
    ends_there, guess, of_class = on_device
    steps = int(np.diff(below).max())
    return _Bins(len(ends), ends_there, guess, steps, of_class, starts[:-1], starts[-1])


@triton.jit
def _add_programs(
    packed_ptr, whole_ptr, low_ptr, sums_ptr, bad_ptr, row_ptr, tables, programs, packed_size, whole_size, low_size,
    room, shift, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the tables and sums of all programs of an image, in their order, to one row: a part of it each.

    Counts, sums that were packed with them, other counts, sums of small probabilities. Then NLL, Brier score, entropy,
    the number of ignored voxels, and mean, squared deviations and maximum of the free energy. The last says whether
    there were unusable numbers.
    """
    part, image, lane = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    packed_ptr, low_ptr, sums_ptr = packed_ptr + image * room, low_ptr + image * room, sums_ptr + image * room
    whole_ptr += image * 2 * room
    row_ptr += image * (2 * packed_size + whole_size + low_size + _SUMS)
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
