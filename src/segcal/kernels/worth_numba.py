"""Quality of scores on the voxels of a case, in one pass on the CPU: likelihood, gaps by confidence and by band."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from segcal.kernels.exponential import fast_exp
from segcal.kernels.loops import compiled, in_parts

# Voxels whose exponentials are taken side by side.
TILE = 64


def case_sums(
    scores: Tensor, labels: Tensor, weight: Tensor, distance: Tensor | None, bins: int, edges: Sequence[float]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return weighted sums over voxels, in float64.

    Args:
        scores: ``(C, n)`` unnormalised log-probabilities.
        labels: ``(n,)``.
        weight: ``(n,)``.
        distance: ``(n,)`` from the boundary, infinite where there is none; None if that is not known.
        bins: how many bins of confidence (lo, hi] there are.
        edges: where bands of distance [lo, hi) end; a last one has no end.

    Returns:
        the NLL; ``(bins,)`` confidence minus correctness; ``(3, bands)`` the same, distance and weight in each band.
    """
    away = np.zeros(0) if distance is None else distance.numpy()
    voxels = scores.contiguous().numpy(), labels.numpy(), weight.numpy(), away
    ends = np.array(edges, np.float64)

    def add(begin: int, end: int) -> tuple[float, np.ndarray, np.ndarray]:
        gaps, bands = np.zeros(bins), np.zeros((3, len(ends) + 1))
        return _sums(*voxels, ends, begin, end, gaps, bands), gaps, bands

    nll, gaps, bands = zip(*in_parts(add, scores.shape[1], TILE), strict=True)
    return sum(nll), np.sum(gaps, axis=0), np.sum(bands, axis=0)


@compiled
def _sums(scores, labels, weight, away, ends, start, stop, gaps, bands):  # type: ignore[no-untyped-def]
    classes, bins = len(scores), len(gaps)
    top, total, decided = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE, np.int64)
    nll = 0.0
    for begin in range(start, stop, TILE):
        size = min(TILE, stop - begin)
        for t in range(size):
            top[t], decided[t], total[t] = scores[0, begin + t], 0, 0.0
        for k in range(1, classes):
            row = scores[k, begin : begin + size]
            for t in range(size):
                above = row[t] > top[t]
                top[t] = row[t] if above else top[t]
                decided[t] = k if above else decided[t]
        for k in range(classes):
            row = scores[k, begin : begin + size]
            for t in range(size):
                total[t] += fast_exp(row[t] - top[t])
        for t in range(size):
            v = begin + t
            nll += weight[v] * (np.log(total[t]) + top[t] - scores[labels[v], v])
            confidence = 1.0 / total[t]
            gap = weight[v] * (confidence - (decided[t] == labels[v]))
            number = min(int(confidence * bins), bins - 1)
            if number > 0 and confidence <= number / bins:
                number -= 1
            gaps[number] += gap
            if len(away) and away[v] < np.inf:
                band = 0
                while band < len(ends) and away[v] >= ends[band]:
                    band += 1
                bands[0, band] += gap
                bands[1, band] += weight[v] * away[v]
                bands[2, band] += weight[v]
    return nll
