"""The compiled loops that add a tile of voxels to the tables.

Some tables take one entry per voxel. Of the probabilities of the classes most lie in the first bin: they are summed
lane by lane, and only the others are looked up one by one; counts of the first bin are what is left over, and are
filled in at the end of the case.
"""

from collections import namedtuple
from dataclasses import fields

import numpy as np

from segcal.kernels.exponential import bits_of_single
from segcal.kernels.jit import part
from segcal.kernels.raw_tables import DOUBT_BASE, DOUBT_BINS, ZONES, RawTables
from segcal.kernels.reliability_tile import NO_ZONE, TILE, find_bins

# The arrays of one block's tables, in a form that compiled loops take.
Out = namedtuple("Out", [field.name for field in fields(RawTables)])  # type: ignore[misc]


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
        i = min(max((bits_of_single(doubts[v]) >> 20) - DOUBT_BASE, 0), DOUBT_BINS - 1)
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
def add_low(row, inverse, zone, edge, lanes, code, n):  # type: ignore[no-untyped-def]
    """Add probabilities up to `edge` to the lanes of zone `code`."""
    for v in range(n):
        q = row[v] * inverse[v]
        lanes[v] += q if (zone[v] == code) & (q <= edge) else 0.0


@part
def count_above(row, inverse, edge, n):  # type: ignore[no-untyped-def]
    """Return how many probabilities are above `edge`."""
    found = 0
    for v in range(n):
        found += row[v] * inverse[v] > edge
    return found


@part
def select_above(row, inverse, zone, edge, chosen, values, n):  # type: ignore[no-untyped-def]
    """List the voxels that count and whose probability is above `edge`; return how many there are."""
    found = 0
    for v in range(n):
        q = row[v] * inverse[v]
        chosen[found] = v
        values[found] = q
        found += int((q > edge) & (zone[v] != NO_ZONE))
    return found


@part
def add_above(s, labels, start, n, c, edge, count, hits, prob):  # type: ignore[no-untyped-def]
    """Look up the bins of one class's probabilities that are above `edge`."""
    zone, chosen, values, slot = s.zone, s.chosen, s.high, s.slot
    found = select_above(s.x[c], s.inverse, zone, edge, chosen, values, n)
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
                add_low(row, inverse, zone, edge, low[z, c], np.int32(z), n)
        if count_above(row, inverse, edge, n):
            add_above(s, labels, start, n, c, edge, count, hits, prob)
