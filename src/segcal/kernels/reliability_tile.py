"""The compiled loops over one tile of voxels, from which :mod:`segcal.kernels.reliability_numba` is made.

Each loop touches few arrays, because compilers give up on vector instructions when there are many; rows of a tile
stay in the first-level cache, so that reading them again costs little. ``n`` is the number of voxels in the tile.
"""

from typing import NamedTuple, Self

import numpy as np
from numba import types
from numba.extending import overload

from segcal.kernels.exponential import exp_parts, log1p_row
from segcal.kernels.jit import OPTIONS, part
from segcal.kernels.tables import ZONES

NO_ZONE = ZONES
HALF_SCALE = np.float32(2.0**112)  # moves the exponent of a float16 to where a float32 has it
SIGN, REST, EXPONENT = np.int32(0x8000), np.int32(0x7FFF), np.int32(0x7C00)


class Scratch(NamedTuple):
    """Rows of one tile; `bits` and `scale`, and `doubt_bits` and `doubt`, are one memory seen as two types."""

    x: np.ndarray  # (classes, tile), scores and then e^(score - top)
    top: np.ndarray
    gap: np.ndarray
    bits: np.ndarray
    scale: np.ndarray
    rest: np.ndarray  # sum of e over all classes but the winner
    square: np.ndarray  # sum of e^2
    cross: np.ndarray  # sum of e (score - top)
    winner: np.ndarray
    zone: np.ndarray
    others: np.ndarray  # rest, in float64
    log: np.ndarray  # log(1 + rest)
    power_bits: np.ndarray
    power: np.ndarray
    inverse: np.ndarray  # 1 / (1 + rest), the confidence
    label_gap: np.ndarray  # score of the true class - top; later the probabilities of one class
    doubt_bits: np.ndarray
    doubt: np.ndarray
    cell: np.ndarray  # where the bins of the voxel's kind begin
    slot: np.ndarray  # a bin for every voxel
    chosen: np.ndarray  # positions of some voxels; one more than the tile, because the list is written ahead
    low: np.ndarray  # (zones, classes, tile), sums of probabilities in the first bin

    @classmethod
    def make(cls, num_classes: int, tile: int, dtype: np.dtype) -> Self:
        """Return rows for scores computed in `dtype`, float32 or float64."""
        whole = np.dtype(np.int32 if dtype == np.float32 else np.int64)
        real = [np.zeros(tile, dtype) for _ in range(5)]
        bits, power_bits, doubt_bits = np.zeros(tile, whole), np.zeros(tile, np.int64), np.zeros(tile, np.int32)
        double = [np.zeros(tile) for _ in range(3)]
        codes = np.zeros(tile, np.int32), np.zeros(tile, np.int32)
        return cls(
            np.zeros((num_classes, tile), dtype), real[0], real[1], bits, bits.view(dtype), real[2], real[3], real[4],
            *codes, double[0], double[1], power_bits, power_bits.view(np.float64), double[2], np.zeros(tile + 1),
            doubt_bits, doubt_bits.view(np.float32), np.zeros(tile, np.int64), np.zeros(tile, np.int64),
            np.zeros(tile + 1, np.int64),
            np.zeros((ZONES, num_classes, tile)),
        )  # fmt: skip


def load_row(raw, bfloat, start, x, bits, scale, n):  # type: ignore[no-untyped-def]
    """Copy a row of scores, widening half types (given as their bits); return how many are not finite."""
    raise NotImplementedError("only compiled loops call this")


def _load_floats(raw, bfloat, start, x, bits, scale, n):  # type: ignore[no-untyped-def]
    bad = 0
    for v in range(n):
        x[v] = raw[start + v]
    for v in range(n):
        bad += not (abs(x[v]) < np.inf)
    return bad


def _load_halves(raw, bfloat, start, x, bits, scale, n):  # type: ignore[no-untyped-def]
    bad = 0
    if bfloat:
        for v in range(n):
            bits[v] = np.int32(raw[start + v]) << np.int32(16)
        for v in range(n):
            x[v] = scale[v]
            bad += not (abs(x[v]) < np.inf)
        return bad
    for v in range(n):
        half = np.int32(raw[start + v])
        bad += (half & EXPONENT) == EXPONENT
        bits[v] = ((half & SIGN) << np.int32(16)) | ((half & REST) << np.int32(13))
    for v in range(n):
        x[v] = scale[v] * HALF_SCALE
    return bad


@overload(load_row, jit_options=OPTIONS)  # type: ignore[arg-type]
def _choose_load_row(raw, bfloat, start, x, bits, scale, n):  # type: ignore[no-untyped-def]
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
    for v in range(n):
        if reference.size and s.x[reference[start + v], v] == s.top[v]:
            s.winner[v] = reference[start + v]
        y = labels[start + v]
        if y < 0:
            s.zone[v] = NO_ZONE
            s.label_gap[v] = 0.0
        else:
            s.zone[v] = 2 if y > 0 else (1 if s.winner[v] > 0 else 0)
            s.label_gap[v] = np.float64(s.x[y, v]) - np.float64(s.top[v])


@part
def add_class(row, scale, gap, winner, code, rest, square, cross, n):  # type: ignore[no-untyped-def]
    """Finish e^(score - top) of one class and add it to the sums over classes."""
    zero = scale[0] * 0
    for v in range(n):
        row[v] = row[v] * scale[v]
    for v in range(n):
        rest[v] += row[v] if winner[v] != code else zero
    for v in range(n):
        square[v] += row[v] * row[v]
    for v in range(n):
        cross[v] += row[v] * gap[v]


@part
def softmax_tile(s, n):  # type: ignore[no-untyped-def]
    """Turn scores into exponentials, and compute what every voxel needs of them."""
    s.rest[:n] = 0
    s.square[:n] = 0
    s.cross[:n] = 0
    for c in range(s.x.shape[0]):
        exp_parts(s.x[c], s.top, s.gap, s.bits, n)
        add_class(s.x[c], s.scale, s.gap, s.winner, np.int32(c), s.rest, s.square, s.cross, n)
    for v in range(n):
        s.others[v] = s.rest[v]
    log1p_row(s.others, s.log, s.power_bits, s.power, n)
    for v in range(n):
        s.inverse[v] = 1.0 / (1.0 + s.others[v])
    for v in range(n):
        s.doubt[v] = s.others[v] * s.inverse[v]


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
def add_low(row, inverse, zone, edge, low, code, n):  # type: ignore[no-untyped-def]
    """Add probabilities up to `edge` to the lanes of zone `code`."""
    for v in range(n):
        q = row[v] * inverse[v]
        low[v] += q if (zone[v] == code) & (q <= edge) else 0.0


@part
def count_high(row, inverse, edge, n):  # type: ignore[no-untyped-def]
    """Return how many probabilities are above `edge`."""
    found = 0
    for v in range(n):
        found += row[v] * inverse[v] > edge
    return found


@part
def select_high(row, inverse, zone, edge, chosen, high, n):  # type: ignore[no-untyped-def]
    """List the voxels that count and whose probability is above `edge`; return how many there are."""
    found = 0
    for v in range(n):
        q = row[v] * inverse[v]
        chosen[found] = v
        high[found] = q
        found += int((q > edge) & (zone[v] != NO_ZONE))
    return found


@part
def class_tile(s, labels, start, n, count, hits, prob):  # type: ignore[no-untyped-def]
    """Count the probability of every class in its bins, apart by zone."""
    bins = count.shape[2]
    edge = 1.0 / bins
    x, inverse, zone, low, chosen, high, slot = s.x, s.inverse, s.zone, s.low, s.chosen, s.label_gap, s.slot
    present = [0, 0, 0, 0]
    for v in range(n):
        present[zone[v]] = 1
    for c in range(x.shape[0]):
        row = x[c]
        for z in range(ZONES):
            if present[z]:
                add_low(row, inverse, zone, edge, low[z, c], np.int32(z), n)
        if count_high(row, inverse, edge, n) == 0:
            continue
        found = select_high(row, inverse, zone, edge, chosen, high, n)
        find_bins(high, bins, slot, found)
        for k in range(found):
            v, i = chosen[k], slot[k]
            z = zone[v]
            count[z, c, i] += 1
            hits[z, c, i] += labels[start + v] == c
            prob[z, c, i] += high[k]
