"""The compiled loops over one tile of voxels, from which :mod:`segcal.kernels.reliability_numba` is made.

Each loop touches few arrays, because compilers give up on vector instructions when there are many; rows of a tile
stay in the first-level cache, so that reading them again costs little. ``n`` is the number of voxels in the tile.
"""

from typing import NamedTuple, Self

import numpy as np
from numba import types
from numba.extending import overload

from segcal.kernels.exponential import exp_below_zero, log1p_above_zero, single_of_bits
from segcal.kernels.jit import OPTIONS, part
from segcal.kernels.raw_tables import ZONES

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
def add_class(row, top, winner, code, sums, n):  # type: ignore[no-untyped-def]
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
        add_class(x[c], top, winner, np.int32(c), sums, n)
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
