"""Likelihood of affine scores and its derivatives, fused, on the CPU.

The same numbers as :mod:`segcal.kernels.affine_torch`, in one pass: voxels go through in tiles that stay in the
first-level cache, with the voxel as the innermost axis, so that every step runs on several voxels at once. The
result does not depend on the number of threads: voxels are cut into a fixed number of parts, summed in order.
"""

import numpy as np
from numba import njit, prange
from torch import Tensor

from segcal.kernels.affine_exponential import fast_exp

TILE = 64
PARTS = 32
SCORES, DROPS, STACKED_DROPS = 0, 1, 2
MODES = {"scores": SCORES, "drops": DROPS, "stacked_drops": STACKED_DROPS}
# Above this many outputs a matrix product is faster than the loops here.
LARGEST_OUTPUTS = 40


def likelihood(features: Tensor, target: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> tuple[float, Tensor]:
    """Return the summed negative log-likelihood and its gradient in `theta`; see the torch version."""
    totals, gradients = _likelihood(
        features.numpy(), target.numpy(), weight.numpy(), theta.contiguous().numpy(), MODES[outputs]
    )
    return float(totals.sum()), theta.new_tensor(gradients.sum(0))


@njit(parallel=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, cache=True, error_model="numpy")
def _likelihood(features, target, weight, theta, mode):  # type: ignore[no-untyped-def]
    num_features, count = features.shape
    num_outputs = theta.shape[0]
    first = 0 if mode == SCORES else 1  # with drops the winner has score zero and no output
    totals = np.zeros(PARTS)
    gradients = np.zeros((PARTS, num_outputs, num_features + 1))
    tiles = (count + TILE - 1) // TILE
    for part in prange(PARTS):
        x = np.empty((num_features, TILE))
        s = np.empty((num_outputs + 1, TILE))
        top = np.empty(TILE)
        norm = np.empty(TILE)
        at_target = np.empty(TILE)
        w = np.empty(TILE)
        gradient = gradients[part]
        total = 0.0
        for tile in range(tiles * part // PARTS, tiles * (part + 1) // PARTS):
            start = tile * TILE
            size = min(TILE, count - start)
            for v in range(size, TILE):
                w[v] = 0.0
            for v in range(size):
                w[v] = weight[start + v]
            for f in range(num_features):
                for v in range(size):
                    x[f, v] = features[f, start + v]
                for v in range(size, TILE):
                    x[f, v] = 0.0
            # scores: rows first .. first + num_outputs of s, row 0 is the winner with drops
            for v in range(TILE):
                s[0, v] = 0.0
            for k in range(num_outputs):
                row = s[k + first]
                bias = theta[k, num_features]
                for v in range(TILE):
                    row[v] = bias
                for f in range(num_features):
                    c = theta[k, f]
                    for v in range(TILE):
                        row[v] += c * x[f, v]
            if mode == DROPS:
                for k in range(1, num_outputs + 1):
                    for v in range(TILE):
                        s[k, v] = -s[k, v]
            elif mode == STACKED_DROPS:
                for k in range(1, num_outputs + 1):
                    for v in range(TILE):
                        s[k, v] = s[k - 1, v] - s[k, v]
            classes = num_outputs + first
            for v in range(TILE):
                top[v] = s[0, v]
            for k in range(1, classes):
                for v in range(TILE):
                    top[v] = max(top[v], s[k, v])
            for v in range(size):
                at_target[v] = s[target[start + v], v] - top[v]
            for v in range(TILE):
                norm[v] = 0.0
            for k in range(classes):
                for v in range(TILE):
                    e = fast_exp(s[k, v] - top[v])
                    s[k, v] = e
                    norm[v] += e
            for v in range(size):
                total += w[v] * (np.log(norm[v]) - at_target[v])
            for v in range(TILE):
                norm[v] = w[v] / norm[v]
            for k in range(classes):
                for v in range(TILE):
                    s[k, v] *= norm[v]
            for v in range(size):
                s[target[start + v], v] -= w[v]
            if mode == STACKED_DROPS:
                for k in range(num_outputs - 1, 0, -1):
                    for v in range(TILE):
                        s[k, v] += s[k + 1, v]
            sign = 1.0 if mode == SCORES else -1.0
            for k in range(num_outputs):
                row = s[k + first]
                for f in range(num_features):
                    acc = 0.0
                    for v in range(TILE):
                        acc += row[v] * x[f, v]
                    gradient[k, f] += sign * acc
                acc = 0.0
                for v in range(TILE):
                    acc += row[v]
                gradient[k, num_features] += sign * acc
        totals[part] = total
    return totals, gradients
