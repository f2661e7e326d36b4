"""The fused CPU version of :mod:`segcal.kernels.reliability`.

Voxels lie side by side in memory (classes are the first axis of a case), so the inner loops run along voxels, over
tiles that stay in the first-level cache; the map of probabilities is never written. A case is divided into blocks
whose number depends on its size alone; each block has tables of its own, and they are added in their order. So the
result does not depend on the number of threads.

Most probabilities lie in the first bin of their class. They are summed lane by lane, and only the others are looked
up one by one; counts of the first bin are what is left over.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.exponential import bits_of_single
from segcal.kernels.jit import compiled, part
from segcal.kernels.reliability_tile import (
    NO_ZONE,
    TILE,
    Scratch,
    class_tile,
    find_bins,
    find_winner,
    load_row,
    read_labels,
    softmax_tile,
)
from segcal.kernels.tables import DOUBT_BASE, DOUBT_BINS, ZONES, Layout, RawTables, fill_first_class_bin, merge_blocks

BLOCKS = 32
BLOCK_VOXELS = 8192
# A case that is not contiguous is copied in pieces of about this many voxels.
PIECE_VOXELS = 1 << 18


class Out(NamedTuple):
    """The arrays of one block's :class:`RawTables`, in a form that compiled loops take."""

    cells: np.ndarray
    confidence: np.ndarray
    class_count: np.ndarray
    class_hits: np.ndarray
    class_prob: np.ndarray
    confusion: np.ndarray
    flips: np.ndarray
    doubt: np.ndarray
    sums: np.ndarray
    energy: np.ndarray
    ignored: np.ndarray
    offset: np.ndarray


@part
def find_cells(zone, winner, labels, bands, start, total, cell, n):  # type: ignore[no-untyped-def]
    """Set where the bins of each voxel's band, zone and outcome begin in the tables of confidence."""
    for v in range(n):
        band = np.int64(bands[start + v]) if bands.size else 0
        right = np.int64(labels[start + v] == winner[v])
        cell[v] = ((band * ZONES + min(zone[v], ZONES - 1)) * 2 + right) * total


@part
def add_confidence(confidence, zone, cell, slot, first, count, total, n):  # type: ignore[no-untyped-def]
    """Add one binning, whose bins begin at `first`, to the flat tables `count` and `total`."""
    for v in range(n):
        if zone[v] != NO_ZONE:
            i = cell[v] + slot[v] + first
            count[i] += 1
            total[i] += confidence[v]


@part
def add_counts(zone, winner, doubts, labels, start, doubt, confusion, ignored, n):  # type: ignore[no-untyped-def]
    """Add confusion and doubt, and count the ignored voxels."""
    for v in range(n):
        if zone[v] == NO_ZONE:
            ignored[0] += 1
            continue
        y, p = labels[start + v], winner[v]
        confusion[y, p] += 1
        i = min(max((bits_of_single(doubts[v]) >> 20) - DOUBT_BASE, 0), DOUBT_BINS - 1)  # type: ignore[call-arg]
        doubt[i, np.int64(y == p)] += 1


@part
def add_flips(zone, winner, labels, reference, start, flips, n):  # type: ignore[no-untyped-def]
    """Count the voxels whose prediction is not the reference's: harmful, beneficial or neutral."""
    for v in range(n):
        old, new, y = reference[start + v], winner[v], labels[start + v]
        if old != new and zone[v] != NO_ZONE:
            flips[old, new, 0 if old == y else (1 if new == y else 2)] += 1


@part
def find_pivot(zone, top, log, n):  # type: ignore[no-untyped-def]
    """Return whether a voxel of the tile counts, and the free energy of the first that does."""
    for v in range(n):
        if zone[v] != NO_ZONE:
            return True, np.float64(top[v]) + log[v]
    return False, 0.0


@part
def add_sums(s, labels, start, n, out, pivot):  # type: ignore[no-untyped-def]
    """Add NLL, Brier score and entropy, and the free energy's distance from `pivot` and its square."""
    zone, inverse, log, gap = s.zone, s.inverse, s.log, s.own_gap
    square, cross, top, x = s.sums[TILE : 2 * TILE], s.sums[2 * TILE :], s.top, s.x
    nll, brier, entropy, first, second, largest = 0.0, 0.0, 0.0, 0.0, 0.0, out.offset[0]
    for v in range(n):
        if zone[v] == NO_ZONE:
            continue
        nll += log[v] - gap[v]
        brier += square[v] * inverse[v] * inverse[v] - 2.0 * x[labels[start + v], v] * inverse[v] + 1.0
        entropy += log[v] - cross[v] * inverse[v]
        energy = top[v] + log[v]
        largest = max(largest, abs(energy))
        first += energy - pivot
        second += (energy - pivot) * (energy - pivot)
    out.sums[0] += nll
    out.sums[1] += brier
    out.sums[2] += entropy
    out.energy[0] += first
    out.energy[1] += second
    out.offset[0] = largest


@part
def add_tile(s, labels, bands, reference, prediction, start, n, bins, out):  # type: ignore[no-untyped-def]
    """Add every voxel of a tile to the tables that take one entry a voxel."""
    if prediction.size:
        prediction[start : start + n] = s.winner[:n]
    find_cells(s.zone, s.winner, labels, bands, start, out.cells.shape[3], s.cell, n)
    count, confidence = out.cells.reshape(-1), out.confidence.reshape(-1)
    first = 0
    for k in range(len(bins)):
        find_bins(s.inverse, bins[k], s.slot, n)
        add_confidence(s.inverse, s.zone, s.cell, s.slot, first, count, confidence, n)
        first += bins[k]
    add_counts(s.zone, s.winner, s.doubt, labels, start, out.doubt, out.confusion, out.ignored, n)
    if reference.size:
        add_flips(s.zone, s.winner, labels, reference, start, out.flips, n)


@part
def finish_block(low, pivot, out):  # type: ignore[no-untyped-def]
    """Add up the lanes of the first bins; turn sums about the pivot into mean and squared deviations."""
    if out.class_prob.size:
        for z in range(low.shape[0]):
            for c in range(low.shape[1]):
                out.class_prob[z, c, 0] += low[z, c].sum()
    seen = out.confusion.sum()
    if seen:
        shift = out.energy[0] / seen
        out.energy[0] = pivot + shift
        out.energy[1] = max(out.energy[1] - shift * shift * seen, 0.0)


@compiled
def count_block(raw, bfloat, labels, bands, reference, prediction, begin, end, bins, s, out):  # type: ignore[no-untyped-def]
    """Count the voxels from `begin` to `end` into `out`; stop at scores that are not finite, and return how many."""
    class_bins = out.class_count.shape[2]
    bad = 0
    started, pivot = False, 0.0
    for start in range(begin, end, TILE):
        n = min(TILE, end - start)
        for c in range(s.x.shape[0]):
            bad += load_row(raw[c], bfloat, start, s.x[c], n)
        if bad:
            return bad
        find_winner(s.x, s.top, s.winner, n)
        read_labels(s, labels, reference, start, n)
        softmax_tile(s, n)
        if not started:
            started, pivot = find_pivot(s.zone, s.top, s.log, n)
        add_tile(s, labels, bands, reference, prediction, start, n, bins, out)
        add_sums(s, labels, start, n, out, pivot)
        if class_bins:
            class_tile(s, labels, start, n, out.class_count, out.class_hits, out.class_prob)
    finish_block(s.low, pivot, out)
    return bad


def count_voxels(
    scores: Tensor,
    labels: Tensor,
    layout: Layout,
    bands: np.ndarray | None = None,
    reference: np.ndarray | None = None,
    prediction: np.ndarray | None = None,
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    flat_labels = labels.reshape(-1).contiguous().numpy()
    no_bands, none = np.empty(0, np.uint8), np.empty(0, np.int16)
    total: RawTables | None = None
    for begin, end, piece in _pieces(scores, flat_labels.size):
        voxels = slice(begin, end)
        maps = (
            flat_labels[voxels],
            no_bands if bands is None else bands[voxels],
            none if reference is None else reference[voxels],
            none if prediction is None else prediction[voxels],
        )
        counted = _count_piece(piece, maps, layout)
        total = counted if total is None else total + counted
    assert total is not None
    if layout.class_bins:
        fill_first_class_bin(total)
    return total


def _pieces(scores: Tensor, voxels: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the case as contiguous ``(classes, voxels)``: at once if it is so in memory, else copied in pieces."""
    num_classes = scores.shape[0]
    if scores.is_contiguous() or voxels <= PIECE_VOXELS:
        yield 0, voxels, scores.contiguous().view(num_classes, voxels)
        return
    flat = scores.reshape(num_classes, -1) if scores.ndim == 2 else scores
    row = voxels // flat.shape[1]
    step = max(1, PIECE_VOXELS // max(row, 1))
    for begin in range(0, flat.shape[1], step):
        piece = flat[:, begin : begin + step].contiguous().view(num_classes, -1)
        yield begin * row, begin * row + piece.shape[1], piece


def _count_piece(scores: Tensor, maps: tuple[np.ndarray, ...], layout: Layout) -> RawTables:
    num_classes, voxels = scores.shape
    half = scores.dtype in (torch.float16, torch.bfloat16)
    raw = (scores.view(torch.uint16) if half else scores).detach().numpy()
    blocks = max(1, min(BLOCKS, voxels // BLOCK_VOXELS))
    ends = [voxels * i // blocks for i in range(blocks + 1)]
    tables = RawTables.zeros(layout, (blocks,))
    bins = np.array(layout.bins)

    def count(i: int) -> int:
        scratch = Scratch.make(num_classes, np.dtype(np.float64 if raw.dtype == np.float64 else np.float32))
        out = Out(*(getattr(tables, f.name)[i] for f in fields(tables)))
        bfloat = scores.dtype == torch.bfloat16
        labels, bands, reference, prediction = maps
        ends_here = ends[i], ends[i + 1]
        return count_block(raw, bfloat, labels, bands, reference, prediction, *ends_here, bins, scratch, out)

    threads = min(blocks, torch.get_num_threads())
    if threads == 1:
        bad = sum(map(count, range(blocks)))
    else:
        with ThreadPoolExecutor(threads) as pool:
            bad = sum(pool.map(count, range(blocks)))
    if bad:
        check_finite(scores, "scores")
    return merge_blocks(tables)
