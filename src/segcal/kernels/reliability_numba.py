"""The fused CPU version of :mod:`segcal.kernels.reliability`.

Voxels lie side by side in memory (classes are the first axis of a case), so the inner loops run along voxels. Tiles
stay in the first-level cache, so reading a row again costs little. The map of probabilities is never written. Each loop
touches few arrays, because compilers give up on vector instructions when there are many. A case is divided into blocks
that have tables of their own, so that the result does not depend on the number of threads
(:mod:`segcal.kernels.loops`).

Some tables take one entry per voxel. Most probabilities of the classes lie in the first bin. They are summed lane by
lane, and only the others are looked up one by one. Counts of the first bin are what is left over, and are filled in at
the end of the case. In the loops ``n`` is the number of voxels in the tile.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels.exponential import bits_of_single, exp_below_zero, log1p_above_zero, single_of_bits
from segcal.kernels.loops import OPTIONS, SOURCES, TILE, compiled, find_winner, in_parts, part
from segcal.kernels.raw_tables import UNCERTAINTY_BASE, UNCERTAINTY_BINS, ZONES, Layout, Map, RawTables, add_tables

# A case that is not contiguous is copied in pieces of about this many voxels.
PIECE_VOXELS = 1 << 18
NO_ZONE = ZONES
HALF_SCALE = np.float32(2.0**112)  # moves the exponent of a float16 to where a float32 has it
SIGN, REST, EXPONENT = np.int32(0x8000), np.int32(0x7FFF), np.int32(0x7C00)


class Scratch(NamedTuple):
    """Rows of one tile."""

    x: np.ndarray  # (classes, tile), scores and then e^(score - top)
    top: np.ndarray
    # Three rows in one, at a distance that the compiler knows: the sum of e over all classes but the winner, the sum of
    # e^2, and the sum of e (score - top).
    sums: np.ndarray
    winner: np.ndarray
    zone: np.ndarray
    log: np.ndarray  # log of the sum of all e
    inverse: np.ndarray  # 1 over that sum: the confidence
    uncertainty: np.ndarray  # 1 - confidence
    own_gap: np.ndarray  # score of the true class - top
    cell: np.ndarray  # where the bins of the voxel's kind begin
    slot: np.ndarray  # a bin for every voxel
    chosen: np.ndarray  # positions of some voxels; one more than the tile, because the list is written ahead
    high: np.ndarray  # their probabilities
    low: np.ndarray  # (zones, classes, tile), sums of probabilities in the first bin

    @classmethod
    def make(cls, num_classes: int, dtype: np.dtype) -> Self:
        """Return rows for scores computed in `dtype`, float32 or float64."""
        x, top, sums = np.zeros((num_classes, TILE), dtype), np.zeros(TILE, dtype), np.zeros(3 * TILE, dtype)
        winner, zone = np.zeros(TILE, np.int32), np.zeros(TILE, np.int32)
        log, inverse, own_gap = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE)
        cell, slot, chosen = (np.zeros(TILE + 1, np.int64) for _ in range(3))
        uncertainty, high, low = np.zeros(TILE, np.float32), np.zeros(TILE + 1), np.zeros((ZONES, num_classes, TILE))
        return cls(x, top, sums, winner, zone, log, inverse, uncertainty, own_gap, cell, slot, chosen, high, low)


def load_row(raw, bfloat, start, x, n):  # type: ignore[no-untyped-def]
    """Copy a row of scores, widening half types (given as their bits); return how many are not finite."""
    raise NotImplementedError("only compiled loops call this")


def _load_floats(raw, bfloat, start, x, n):  # type: ignore[no-untyped-def]
    bad = 0
    for v in range(n):
        x[v] = raw[start + v]
    for v in range(n):
        bad += not (abs(x[v]) < np.inf)
    return bad


def _load_halves(raw, bfloat, start, x, n):  # type: ignore[no-untyped-def]
    bad = 0
    if bfloat:
        for v in range(n):
            x[v] = single_of_bits(np.int32(raw[start + v]) << np.int32(16))
            bad += not (abs(x[v]) < np.inf)
        return bad
    for v in range(n):
        half = np.int32(raw[start + v])
        bad += (half & EXPONENT) == EXPONENT
        x[v] = single_of_bits(((half & SIGN) << np.int32(16)) | ((half & REST) << np.int32(13))) * HALF_SCALE
    return bad


@overload(load_row, jit_options=OPTIONS)  # type: ignore[arg-type]
def _choose_load_row(raw, bfloat, start, x, n):  # type: ignore[no-untyped-def]
    return _load_halves if raw.dtype == types.uint16 else _load_floats


@part
def read_labels(s, labels, reference, start, n):  # type: ignore[no-untyped-def]
    """Keep the reference where nothing is strictly above it; note the true class's score and the zone."""
    x, top, winner, zone, own_gap = s.x, s.top, s.winner, s.zone, s.own_gap
    for v in range(n):
        if reference.size and x[reference[start + v], v] == top[v]:
            winner[v] = reference[start + v]
        y = labels[start + v]
        if y < 0:
            zone[v] = NO_ZONE
            own_gap[v] = 0.0
        else:
            zone[v] = 2 if y > 0 else (1 if winner[v] > 0 else 0)
            own_gap[v] = np.float64(x[y, v]) - np.float64(top[v])


@part
def _add_class(row, top, winner, code, sums, n):  # type: ignore[no-untyped-def]
    """Turn the scores of one class into exponentials and add them to the sums over classes."""
    zero = top[0] - top[0]  # of the same type
    for v in range(n):
        gap = row[v] - top[v]
        e = exp_below_zero(gap)
        row[v] = e
        sums[v] += e if winner[v] != code else zero
        sums[TILE + v] += e * e
        sums[2 * TILE + v] += e * gap


@part
def softmax_tile(s, n):  # type: ignore[no-untyped-def]
    """Turn scores into exponentials, and compute what every voxel needs of them."""
    x, top, winner, sums, log, inverse, uncertainty = s.x, s.top, s.winner, s.sums, s.log, s.inverse, s.uncertainty
    sums[:] = 0
    for c in range(x.shape[0]):
        _add_class(x[c], top, winner, np.int32(c), sums, n)
    for v in range(n):
        log[v] = log1p_above_zero(np.float64(sums[v]))
    for v in range(n):
        rest = np.float64(sums[v])
        inverse[v] = 1.0 / (1.0 + rest)
        uncertainty[v] = rest * inverse[v]


@part
def find_bins(values, count, slot, n):  # type: ignore[no-untyped-def]
    """Set `slot` to the bin (lo, hi] of each value among `count` bins with edges k / count."""
    size, last = np.float64(count), np.int64(count - 1)
    for v in range(n):
        q = values[v]
        # The product is rounded, so the guess can be one off; the edges decide.
        i = min(np.int64(q * size), last)
        i -= np.int64((q <= i / size) & (i > 0))
        i += np.int64((q > (i + 1) / size) & (i < last))
        slot[v] = i


@part
def _find_cells(zone, winner, labels, bands, start, total, cell, n):  # type: ignore[no-untyped-def]
    """Set where the bins of each voxel's band, zone and outcome begin in the tables of confidence."""
    for v in range(n):
        band = np.int64(bands[start + v]) if bands.size else 0
        right = np.int64(labels[start + v] == winner[v])
        cell[v] = ((band * ZONES + min(zone[v], ZONES - 1)) * 2 + right) * total


@part
def _add_confidence(confidence, zone, cell, slot, first, count, total, n):  # type: ignore[no-untyped-def]
    """Add one binning, whose bins begin at `first`, to the flat tables `count` and `total`."""
    for v in range(n):
        if zone[v] != NO_ZONE:
            i = cell[v] + slot[v] + first
            count[i] += 1
            total[i] += confidence[v]


@part
def _add_counts(zone, winner, uncertainties, labels, start, uncertainty, confusion, ignored, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        if zone[v] == NO_ZONE:
            ignored[0] += 1
            continue
        y, p = labels[start + v], winner[v]
        confusion[y, p] += 1
        i = min(max((bits_of_single(uncertainties[v]) >> 20) - UNCERTAINTY_BASE, 0), UNCERTAINTY_BINS - 1)
        uncertainty[i, np.int64(y == p)] += 1


@part
def _add_flips(zone, winner, labels, reference, start, flips, n):  # type: ignore[no-untyped-def]
    """Count the voxels whose prediction is not the reference's: harmful, beneficial or neutral."""
    for v in range(n):
        old, new, y = reference[start + v], winner[v], labels[start + v]
        if old != new and zone[v] != NO_ZONE:
            flips[old, new, 0 if old == y else (1 if new == y else 2)] += 1


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
    _find_cells(s.zone, s.winner, labels, bands, start, out.cells.shape[3], s.cell, n)
    count, confidence = out.cells.reshape(-1), out.confidence.reshape(-1)
    first = 0
    for k in range(len(bins)):
        find_bins(s.inverse, bins[k], s.slot, n)
        _add_confidence(s.inverse, s.zone, s.cell, s.slot, first, count, confidence, n)
        first += bins[k]
    _add_counts(s.zone, s.winner, s.uncertainty, labels, start, out.uncertainty, out.confusion, out.ignored, n)
    if reference.size:
        _add_flips(s.zone, s.winner, labels, reference, start, out.flips, n)


@part
def _add_low(row, inverse, zone, edge, lanes, code, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        q = row[v] * inverse[v]
        lanes[v] += q if (zone[v] == code) & (q <= edge) else 0.0


@part
def _count_above(row, inverse, edge, n):  # type: ignore[no-untyped-def]
    found = 0
    for v in range(n):
        found += row[v] * inverse[v] > edge
    return found


@part
def _select_above(row, inverse, zone, edge, chosen, values, n):  # type: ignore[no-untyped-def]
    """List the voxels that count and whose probability is above `edge`; return how many there are."""
    found = 0
    for v in range(n):
        q = row[v] * inverse[v]
        chosen[found] = v
        values[found] = q
        found += int((q > edge) & (zone[v] != NO_ZONE))
    return found


@part
def _add_above(s, labels, start, n, c, edge, count, hits, prob):  # type: ignore[no-untyped-def]
    zone, chosen, values, slot = s.zone, s.chosen, s.high, s.slot
    found = _select_above(s.x[c], s.inverse, zone, edge, chosen, values, n)
    find_bins(values, count.shape[2], slot, found)
    for k in range(found):
        v, i = chosen[k], slot[k]
        z = zone[v]
        count[z, c, i] += 1
        hits[z, c, i] += labels[start + v] == c
        prob[z, c, i] += values[k]


@part
def class_tile(s, labels, start, n, count, hits, prob):  # type: ignore[no-untyped-def]
    """Count the probability of every class in its bins, apart by zone."""
    x, inverse, zone, low = s.x, s.inverse, s.zone, s.low
    edge = 1.0 / count.shape[2]
    present = [0, 0, 0, 0]
    for v in range(n):
        present[zone[v]] = 1
    for c in range(x.shape[0]):
        row = x[c]
        for z in range(ZONES):
            if present[z]:
                _add_low(row, inverse, zone, edge, low[z, c], np.int32(z), n)
        if _count_above(row, inverse, edge, n):
            _add_above(s, labels, start, n, c, edge, count, hits, prob)


@part
def _find_pivot(zone, top, log, n):  # type: ignore[no-untyped-def]
    """Return whether a voxel of the tile counts, and the free energy of the first that does."""
    for v in range(n):
        if zone[v] != NO_ZONE:
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
                bad += load_row(raw[c], bfloat, start, s.x[c], n)
            if bad:
                return bad
            find_winner(s.x, s.top, s.winner, n)
            read_labels(s, labels, reference, start, n)
            softmax_tile(s, n)
            if not started:
                started, pivot = _find_pivot(s.zone, s.top, s.log, n)
            add_tile(s, labels, bands, reference, prediction, start, n, bins, out)
            add_sums(s, labels, start, n, out, pivot)
            if class_bins:
                class_tile(s, labels, start, n, out.class_count, out.class_hits, out.class_prob)
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
        total.fill_first_class_bin()
    return total


def _pieces(scores: Tensor, voxels: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the case as contiguous ``(classes, voxels)``: at once if it is so in memory, else copied in pieces."""
    num_classes = scores.shape[0]
    if scores.is_contiguous() or voxels <= PIECE_VOXELS:
        yield 0, voxels, scores.contiguous().view(num_classes, voxels)
        return
    row = voxels // scores.shape[1]
    step = max(1, PIECE_VOXELS // max(row, 1))
    for begin in range(0, scores.shape[1], step):
        piece = scores[:, begin : begin + step].contiguous().view(num_classes, -1)
        yield begin * row, begin * row + piece.shape[1], piece


def _count_piece(scores: Tensor, maps: list[np.ndarray], layout: Layout) -> RawTables:
    half = scores.dtype in (torch.float16, torch.bfloat16)
    raw = (scores.view(torch.uint16) if half else scores).detach().numpy()
    bins, wide = np.array(layout.bins), np.dtype(np.float64 if raw.dtype == np.float64 else np.float32)

    def count(begin: int, end: int) -> tuple[int, RawTables]:
        scratch, out = Scratch.make(len(raw), wide), RawTables.zeros(layout)
        return count_block(raw, scores.dtype == torch.bfloat16, *maps, begin, end, bins, scratch, out), out

    bad, tables = zip(*in_parts(count, raw.shape[1]), strict=True)
    if any(bad):
        check_finite(scores, "scores")
    return add_tables(tables)
