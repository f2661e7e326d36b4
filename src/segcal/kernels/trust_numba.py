r"""Sums over the voxels of one case that :mod:`segcal.trust.sums` keeps, in one pass over its scores, on the CPU.

The number of thresholds that a probability reaches is looked up by the first bits of the smaller of :math:`p` and
:math:`1 - p`. These leave one threshold open, which is compared. So thresholds must be apart: by 2 % of that smaller
number. With the scores less their largest, t, the entropy of a voxel is :math:`\log \sum_c e^{t_c} - \sum_c p_c t_c`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from segcal.kernels.exponential import bits_of_single, exp_below_zero, fast_log
from segcal.kernels.loops import SOURCES, TILE, compiled, find_winner, in_parts, part
from segcal.types import IGNORED

# First bits of a float32 by which thresholds are found: six of the mantissa.
BITS = 17


class VoxelSums(NamedTuple):
    """Sums over voxels, as :class:`segcal.trust.sums.CaseSums` describes it, all float64.

    `alone` has voxels and entropy; `columns` six rows of classes without labels, and `labelled` three with them.
    """

    alone: NDArray[np.float64]
    columns: NDArray[np.float64]
    decided: NDArray[np.float64]
    labelled: NDArray[np.float64]
    joint: NDArray[np.float64]
    histograms: NDArray[np.float64]


def sum_voxels(
    scores: Tensor,
    before: Tensor,
    edge: Tensor,
    inside: Tensor | None,
    labels: Tensor | None,
    thresholds: NDArray[np.float64],
    confident: tuple[float, float],
) -> VoxelSums:
    """Return the sums over voxels, those of labels 0 without labels.

    Args:
        scores: ``(classes, n)`` float32 or float64, on any device.
        before: ``(n,)``, the classes that were decided before.
        edge: ``(n,)`` bool.
        inside: ``(n,)`` bool, the voxels that count; all if None.
        labels: ``(n,)`` integers, :data:`segcal.types.IGNORED` where there is none; None without labels.
        thresholds: ascending.
        confident: confidences between which decisions are told apart.
    """
    x = scores.contiguous().cpu().numpy()
    limits, guess = np.array([-np.inf, *thresholds, np.inf], x.dtype), _first_guess(thresholds.astype(x.dtype))
    classes, voxels = x.shape
    everywhere = np.ones(voxels, bool) if inside is None else inside.numpy()
    known = np.empty(0, np.int64) if labels is None else labels.numpy()
    rest = before.numpy(), edge.numpy(), everywhere, known, limits, guess, np.array(confident)

    def add(begin: int, end: int) -> VoxelSums:
        bins, kinds, zeros = len(thresholds) + 1, 3 * classes, np.zeros
        made = VoxelSums(
            zeros(2), zeros((6, classes)), zeros(kinds), zeros((3, classes)), zeros((classes, kinds)),
            zeros((3, classes, bins)),
        )  # fmt: skip
        _add(x, *rest, begin, end, *made)
        return made

    return VoxelSums(*(sum(each) for each in zip(*in_parts(add, voxels, TILE), strict=True)))


def _first_guess(thresholds: NDArray[np.floating]) -> NDArray[np.int32]:
    """Return how many thresholds are reached at the lower end of each cell of probabilities, then of 1 - p."""
    cells = np.arange((int(np.float32(1).view(np.int32)) >> BITS) + 1, dtype=np.int32)
    below, above = cells << BITS, (cells + 1) << BITS
    ends = below.view(np.float32).astype(np.float64), 1 - above.view(np.float32).astype(np.float64)
    return np.searchsorted(thresholds.astype(np.float64), np.concatenate(ends), side="right").astype(np.int32)


@part
def _reached(p, limits, guess):  # type: ignore[no-untyped-def]
    """Return how many limits a number from 0 to 1 reaches; the first limit and the last are infinite."""
    single = np.float32(p)
    high = single > np.float32(0.5)
    k = guess[(bits_of_single(np.float32(1) - single if high else single) >> BITS) + high * (len(guess) // 2)]
    k += limits[k + 1] <= p
    return k - (limits[k] > p)


@compiled
def _add(  # type: ignore[no-untyped-def]
    x, before, edge, inside, labels, limits, guess, confident, begin, end,
    alone, columns, decided, labelled, joint, histograms,
):  # fmt: skip
    """Add the voxels from `begin` to `end`."""
    _ = SOURCES
    classes, one, least = len(x), x.dtype.type(1), limits[1]
    prob, top = np.empty((classes, TILE), x.dtype), np.empty(TILE, x.dtype)
    total, drop, best = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype), np.empty(TILE, np.int32)
    for start in range(begin, end, TILE):
        n = min(TILE, end - start)
        for c in range(classes):
            prob[c, :n] = x[c, start : start + n]
        find_winner(prob, top, best, n)
        total[:n] = 0
        drop[:n] = 0
        for c in range(classes):
            out = prob[c]
            for v in range(n):
                t = out[v] - top[v]
                e = exp_below_zero(t)
                out[v] = e
                total[v] += e
                drop[v] += e * t
        for c in range(classes):
            out = prob[c]
            for v in range(n):
                out[v] /= total[v]
        for v in range(n):
            place = start + v
            if not inside[place]:
                continue
            alone[0] += 1
            alone[1] += fast_log(np.float64(total[v])) - np.float64(drop[v]) / np.float64(total[v])
            m = before[place]
            m = m if x[m, place] >= top[v] else best[v]
            own = np.float64(prob[m, v])
            kind = 3 * m + (own > confident[0]) + (own > confident[1])
            columns[0, m] += 1
            columns[2, m] += own
            decided[kind] += 1
            if edge[place]:
                columns[4, m] += 1
                columns[5, m] += own
            if len(labels) == 0 or labels[place] == IGNORED:
                continue
            y = labels[place]
            labelled[0, y] += 1
            labelled[1, y] += y == m
            labelled[2, m] += 1
            joint[y, kind] += 1
            likely = prob[y, v]
            k = _reached(likely, limits, guess)
            histograms[0, y, k] += 1
            rank = likely
            if y != best[v]:
                rank = likely - likely
                for c in range(classes):
                    rank += prob[c, v] if prob[c, v] > likely else 0
                rank = min(rank + likely, one)
                k = _reached(rank, limits, guess)
            histograms[1, y, k - (limits[k] == rank)] += 1
        for c in range(classes):
            out, table = prob[c], histograms[2, c]
            mass, spread, low = 0.0, 0.0, 0
            for v in range(n):
                if inside[start + v]:
                    p = out[v]
                    mass += p
                    spread += p * (one - p)
                    if len(labels) and labels[start + v] != IGNORED:
                        if p < least:
                            low += 1
                        else:
                            table[_reached(p, limits, guess)] += 1
            columns[1, c] += mass
            columns[3, c] += spread
            table[0] += low


def count_alike(maps: NDArray[np.integer], classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the voxels of each class in each of m maps ``(m, n)``, and those that two have alike, ``(m, m, classes)``.

    >>> count_alike(np.array([[0, 1, 1], [0, 0, 1]]), 2)[1][0, 1]
    array([1., 1.])
    """
    voxels, both = np.zeros((len(maps), classes)), np.zeros((len(maps), len(maps), classes))
    _count_alike(np.ascontiguousarray(maps.T), voxels, both)
    return voxels, both


@compiled
def _count_alike(maps, voxels, both):  # type: ignore[no-untyped-def]
    _ = SOURCES
    members = maps.shape[1]
    common = np.zeros(voxels.shape[1])
    for v in range(len(maps)):
        first, alike = maps[v, 0], True
        for m in range(1, members):
            alike &= maps[v, m] == first
        if alike:
            common[first] += 1
            continue
        for m in range(members):
            voxels[m, maps[v, m]] += 1
            for other in range(m + 1, members):
                if maps[v, m] == maps[v, other]:
                    both[m, other, maps[v, m]] += 1
    for m in range(members):
        voxels[m] += common
        both[m, m + 1 :] += common
