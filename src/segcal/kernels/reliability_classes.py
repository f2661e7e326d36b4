"""The compiled loops that bin the probability of every class, apart by zone.

Most probabilities lie in the first bin of their class. They are summed lane by lane, and only the others are looked up
one by one; counts of the first bin are what is left over, and are filled in at the end of the case.
"""

import numpy as np

from segcal.kernels.jit import part
from segcal.kernels.raw_tables import ZONES
from segcal.kernels.reliability_tile import NO_ZONE, find_bins


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
