"""The compiled loops over one tile of voxels, from which :mod:`segcal.kernels.reliability_numba` is made.

Each loop touches few arrays, because compilers give up on vector instructions when there are many; rows of a tile
stay in the first-level cache, so that reading them again costs little. ``n`` is the number of voxels in the tile.

Some tables take one entry per voxel. Of the probabilities of the classes most lie in the first bin: they are summed
lane by lane, and only the others are looked up one by one; counts of the first bin are what is left over, and are
filled in at the end of the case.
"""

from typing import NamedTuple, Self

import numpy as np
from numba import types
from numba.extending import overload

from segcal.kernels.exponential import bits_of_single, exp_below_zero, log1p_above_zero, single_of_bits
from segcal.kernels.loops import OPTIONS, part
from segcal.kernels.raw_tables import DOUBT_BASE, DOUBT_BINS, ZONES

TILE = 256
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
    doubt: np.ndarray  # 1 - confidence
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
        doubt, high, low = np.zeros(TILE, np.float32), np.zeros(TILE + 1), np.zeros((ZONES, num_classes, TILE))
        return cls(x, top, sums, winner, zone, log, inverse, doubt, own_gap, cell, slot, chosen, high, low)


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
def find_winner(x, top, winner, n):  # type: ignore[no-untyped-def]
    """Set the largest score of every voxel and its class; of equal ones, the lowest."""
    top[:n] = x[0, :n]
    winner[:n] = 0
    for c in range(1, x.shape[0]):
        row, code = x[c], np.int32(c)
        for v in range(n):
            above = row[v] > top[v]
            top[v] = row[v] if above else top[v]
            winner[v] = code if above else winner[v]


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
    x, top, winner, sums, log, inverse, doubt = s.x, s.top, s.winner, s.sums, s.log, s.inverse, s.doubt
    sums[:] = 0
    for c in range(x.shape[0]):
        _add_class(x[c], top, winner, np.int32(c), sums, n)
    for v in range(n):
        log[v] = log1p_above_zero(np.float64(sums[v]))
    for v in range(n):
        rest = np.float64(sums[v])
        inverse[v] = 1.0 / (1.0 + rest)
        doubt[v] = rest * inverse[v]


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
def _add_counts(zone, winner, doubts, labels, start, doubt, confusion, ignored, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        if zone[v] == NO_ZONE:
            ignored[0] += 1
            continue
        y, p = labels[start + v], winner[v]
        confusion[y, p] += 1
        i = min(max((bits_of_single(doubts[v]) >> 20) - DOUBT_BASE, 0), DOUBT_BINS - 1)
        doubt[i, np.int64(y == p)] += 1


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
    _add_counts(s.zone, s.winner, s.doubt, labels, start, out.doubt, out.confusion, out.ignored, n)
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
