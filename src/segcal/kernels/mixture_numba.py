r"""Likelihood of a mixture of tempered, plain and uniform probabilities, and its derivatives, in one pass on the CPU.

With :math:`p = S(\beta z)_y`, :math:`o = S(z)_y`, the gaps :math:`g_k = z_k - \max z` and their mean and variance
under :math:`S(\beta z)`, the probability of the label is :math:`m = w_1 p + w_2 o + w_3 / C`, and

.. math:: \partial p / \partial \beta = p\,(g_y - \bar g), \qquad
          \partial^2 p / \partial \beta^2 = p\,((g_y - \bar g)^2 - \mathrm{var}\,g) .
"""

import math

import numpy as np
from torch import Tensor, from_numpy

from segcal.kernels.exponential import fast_exp
from segcal.kernels.loops import compiled, in_parts

# Voxels whose exponentials are taken side by side.
TILE = 64


def mixture_terms(logits: Tensor, labels: Tensor, weight: Tensor, theta: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the weighted sums of -log m and of its first two derivatives in (beta, w1, w2, w3).

    Args:
        logits: ``(C, n)`` float64.
        labels: ``(n,)`` int64.
        weight: ``(n,)`` float64.
        theta: ``(4,)``.
    """
    voxels = logits.contiguous().numpy(), labels.numpy(), weight.numpy(), theta.numpy()

    def add(begin: int, end: int) -> tuple[float, np.ndarray, np.ndarray]:
        gradient, hessian = np.zeros(4), np.zeros((4, 4))
        return _sums(*voxels, begin, end, gradient, hessian), gradient, hessian

    values, gradients, hessians = zip(*in_parts(add, logits.shape[1], TILE), strict=True)
    value = float(sum(values))
    return value if math.isfinite(value) else math.inf, from_numpy(sum(gradients)), from_numpy(sum(hessians))


@compiled
def _sums(z, labels, weight, theta, start, stop, gradient, hessian):  # type: ignore[no-untyped-def]
    classes, (beta, w1, w2, w3) = len(z), (theta[0], theta[1], theta[2], theta[3])
    top, plain, total, first, second = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE), np.zeros(TILE), np.zeros(TILE)
    change, value = np.zeros(4), 0.0
    for begin in range(start, stop, TILE):
        size = min(TILE, stop - begin)
        top[:size] = z[0, begin : begin + size]
        for k in range(1, classes):
            row = z[k, begin : begin + size]
            for t in range(size):
                top[t] = max(top[t], row[t])
        plain[:], total[:], first[:], second[:] = 0.0, 0.0, 0.0, 0.0
        for k in range(classes):
            row = z[k, begin : begin + size]
            for t in range(size):
                gap = row[t] - top[t]
                share = fast_exp(beta * gap)
                plain[t] += fast_exp(gap)
                total[t] += share
                first[t] += share * gap
                second[t] += share * gap * gap
        for t in range(size):
            v = begin + t
            gap, mean = z[labels[v], v] - top[t], first[t] / total[t]
            spread = second[t] / total[t] - mean * mean
            tempered, original, uniform = fast_exp(beta * gap) / total[t], fast_exp(gap) / plain[t], 1.0 / classes
            m = w1 * tempered + w2 * original + w3 * uniform
            slope = tempered * (gap - mean)
            change[0], change[1], change[2], change[3] = w1 * slope / m, tempered / m, original / m, uniform / m
            value -= weight[v] * np.log(m)
            for i in range(4):
                gradient[i] -= weight[v] * change[i]
                for j in range(4):
                    hessian[i, j] += weight[v] * change[i] * change[j]
            hessian[0, 0] -= weight[v] * w1 * tempered * ((gap - mean) ** 2 - spread) / m
            hessian[0, 1] -= weight[v] * slope / m
            hessian[1, 0] -= weight[v] * slope / m
    return value
