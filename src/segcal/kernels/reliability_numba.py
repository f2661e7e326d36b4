"""The fused CPU version of :mod:`segcal.kernels.reliability`.

Voxels lie side by side in memory (classes are the first axis of a case), so the inner loops run along voxels, over
tiles that stay in the first-level cache; the map of probabilities is never written. A case is divided into blocks
that have tables of their own, so that the result does not depend on the number of threads
(:mod:`segcal.kernels.loops`).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels import reliability_tile as tile
from segcal.kernels.loops import SOURCES, compiled, in_parts, part
from segcal.kernels.raw_tables import Layout, Map, RawTables, add_tables, fill_first_class_bin
from segcal.kernels.reliability_tile import TILE

# A case that is not contiguous is copied in pieces of about this many voxels.
PIECE_VOXELS = 1 << 18


@part
def _find_pivot(zone, top, log, n):  # type: ignore[no-untyped-def]
    """Return whether a voxel of the tile counts, and the free energy of the first that does."""
    for v in range(n):
        if zone[v] != tile.NO_ZONE:
            return True, np.float64(top[v]) + log[v]
    return False, 0.0


@part
def _finish_block(low, pivot, out):  # type: ignore[no-untyped-def]
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


def _make_count_block(sources):  # type: ignore[no-untyped-def]
    @compiled
    def count_block(raw, bfloat, labels, bands, reference, prediction, begin, end, bins, s, out):  # type: ignore[no-untyped-def]
        """Count the voxels from `begin` to `end` into `out`; return how many scores are not finite, if any."""
        class_bins = out.class_count.shape[2]
        # The loops below live in other files: their text is part of this function, so that a change of it is noticed.
        bad = 0 * sources
        started, pivot = False, 0.0
        for start in range(begin, end, TILE):
            n = min(TILE, end - start)
            for c in range(s.x.shape[0]):
                bad += tile.load_row(raw[c], bfloat, start, s.x[c], n)
            if bad:
                return bad
            tile.find_winner(s.x, s.top, s.winner, n)
            tile.read_labels(s, labels, reference, start, n)
            tile.softmax_tile(s, n)
            if not started:
                started, pivot = _find_pivot(s.zone, s.top, s.log, n)
            tile.add_tile(s, labels, bands, reference, prediction, start, n, bins, out)
            tile.add_sums(s, labels, start, n, out, pivot)
            if class_bins:
                tile.class_tile(s, labels, start, n, out.class_count, out.class_hits, out.class_prob)
        _finish_block(s.low, pivot, out)
        return bad

    return count_block


count_block = _make_count_block(SOURCES)


def count_voxels(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case; the arguments are those of :func:`segcal.kernels.reliability.count_voxels`."""
    flat_labels = labels.reshape(-1).contiguous().numpy()
    maps = (
        flat_labels,
        np.empty(0, np.uint8) if bands is None else bands,
        *(np.empty(0, np.int16) if each is None else each for each in (reference, prediction)),
    )
    total = add_tables(
        _count_piece(piece, [each[begin:end] for each in maps], layout)
        for begin, end, piece in _pieces(scores, flat_labels.size)
    )
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


def _count_piece(scores: Tensor, maps: list[np.ndarray], layout: Layout) -> RawTables:
    half = scores.dtype in (torch.float16, torch.bfloat16)
    raw = (scores.view(torch.uint16) if half else scores).detach().numpy()
    bins, wide = np.array(layout.bins), np.dtype(np.float64 if raw.dtype == np.float64 else np.float32)

    def count(begin: int, end: int) -> tuple[int, RawTables]:
        scratch, out = tile.Scratch.make(len(raw), wide), RawTables.zeros(layout)
        return count_block(raw, scores.dtype == torch.bfloat16, *maps, begin, end, bins, scratch, out), out

    bad, tables = zip(*in_parts(count, raw.shape[1]), strict=True)
    if any(bad):
        check_finite(scores, "scores")
    return add_tables(tables)
