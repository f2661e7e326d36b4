r"""Likelihoods of affine scores and of a temperature, with their derivatives, fused, on the CPU.

The same numbers as :mod:`segcal.kernels.affine_torch`, in one pass. Voxels are processed in tiles that stay in the
first-level cache. The voxel is the innermost axis, so every step runs on several voxels at once.

A tile holds one row per class. With drops the winner has score zero and no output of its own: it is row 0, and the
outputs are rows 1 to K. With plain scores they are rows 0 to K - 1.
"""

from functools import partial

import numpy as np
from numba import njit
from torch import Tensor

from segcal.kernels import affine_torch
from segcal.kernels.exponential import SUMS, fast_exp, fast_log
from segcal.kernels.loops import compiled, in_parts

TILE = 64
SCORES, DROPS, STACKED_DROPS = 0, 1, 2
MODES = {"scores": SCORES, "drops": DROPS, "stacked_drops": STACKED_DROPS}
# Above this many outputs a matrix product is faster than the loops here.
LARGEST_OUTPUTS = 40


def likelihood(features: Tensor, target: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> tuple[float, Tensor]:
    """Return the summed negative log-likelihood and its gradient in `theta`; see the torch version."""
    voxels = features.numpy(), target.numpy(), weight.numpy()
    own, mode = theta.contiguous().numpy(), MODES[outputs]

    def add(begin: int, end: int) -> tuple[float, np.ndarray]:
        gradient = np.zeros(theta.shape)
        return _likelihood(*voxels, own, mode, begin, end, gradient), gradient

    values, gradients = zip(*in_parts(add, features.shape[1], TILE), strict=True)
    return sum(values), theta.new_tensor(sum(gradients))


def temperature_terms(logits: Tensor, target: Tensor, weight: Tensor, beta: float) -> tuple[float, float, float]:
    """Return the weighted sums of f, f' and f'' of a temperature on any device; see the torch version."""
    if logits.device.type != "cpu":
        return affine_torch.temperature_terms(logits, target, weight, beta)
    voxels = logits.numpy(), target.numpy(), weight.numpy()
    parts = in_parts(lambda begin, end: _temperature(*voxels, beta, begin, end), logits.shape[1], TILE)
    value, first, second = (sum(column) for column in zip(*parts, strict=True))
    return value, first, second


@njit(fastmath=SUMS, inline="always")
def _load_tile(features, weight, start, size, x, w):  # type: ignore[no-untyped-def]
    """Copy a tile, with zeros where it is not full."""
    for v in range(size):
        w[v] = weight[start + v]
    for v in range(size, TILE):
        w[v] = 0.0
    for f in range(features.shape[0]):
        for v in range(size):
            x[f, v] = features[f, start + v]
        for v in range(size, TILE):
            x[f, v] = 0.0


@njit(fastmath=SUMS, inline="always")
def _outputs(theta, x, first, s):  # type: ignore[no-untyped-def]
    """Set the rows of s to W x + b, and the winner's row, if it has one, to zero."""
    columns = theta.shape[1] - 1
    for v in range(TILE):
        s[0, v] = 0.0
    for k in range(theta.shape[0]):
        row = s[k + first]
        for v in range(TILE):
            row[v] = theta[k, columns]
        for f in range(columns):
            for v in range(TILE):
                row[v] += theta[k, f] * x[f, v]


@njit(fastmath=SUMS, inline="always")
def _drop(mode, rows, s):  # type: ignore[no-untyped-def]
    """Turn drops into scores: each below the winner, or each below the one before it."""
    if mode == DROPS:
        for k in range(1, rows):
            for v in range(TILE):
                s[k, v] = -s[k, v]
    elif mode == STACKED_DROPS:
        for k in range(1, rows):
            for v in range(TILE):
                s[k, v] = s[k - 1, v] - s[k, v]


@njit(fastmath=SUMS, inline="always")
def _softmax(rows, s, top, norm):  # type: ignore[no-untyped-def]
    """Replace scores by their exponentials below the largest, and sum those."""
    for v in range(TILE):
        top[v] = s[0, v]
        norm[v] = 0.0
    for k in range(1, rows):
        for v in range(TILE):
            top[v] = max(top[v], s[k, v])
    for k in range(rows):
        for v in range(TILE):
            e = fast_exp(s[k, v] - top[v])
            s[k, v] = e
            norm[v] += e


@njit(fastmath=SUMS, inline="always")
def _residuals(target, start, size, rows, mode, s, norm, w):  # type: ignore[no-untyped-def]
    """Turn exponentials into w (p - e_t), pulled back through the drops."""
    for v in range(TILE):
        norm[v] = w[v] / norm[v]
    for k in range(rows):
        for v in range(TILE):
            s[k, v] *= norm[v]
    for v in range(size):
        s[target[start + v], v] -= w[v]
    if mode == STACKED_DROPS:
        for k in range(rows - 2, 0, -1):
            for v in range(TILE):
                s[k, v] += s[k + 1, v]


@njit(fastmath=SUMS, inline="always")
def _add_gradient(x, s, first, sign, gradient):  # type: ignore[no-untyped-def]
    """Add the residuals times (x, 1)."""
    columns = gradient.shape[1] - 1
    for k in range(gradient.shape[0]):
        row = s[k + first]
        for f in range(columns):
            total = 0.0
            for v in range(TILE):
                total += row[v] * x[f, v]
            gradient[k, f] += sign * total
        total = 0.0
        for v in range(TILE):
            total += row[v]
        gradient[k, columns] += sign * total


@partial(compiled, fastmath=SUMS)
def _likelihood(features, target, weight, theta, mode, begin, end, gradient):  # type: ignore[no-untyped-def]
    """Return the sum over voxels from `begin` to `end`, and add their gradient."""
    first, sign = (0, 1.0) if mode == SCORES else (1, -1.0)
    rows = theta.shape[0] + first
    x = np.empty((features.shape[0], TILE))
    s = np.empty((theta.shape[0] + 1, TILE))
    top, norm, w, own = np.empty(TILE), np.empty(TILE), np.empty(TILE), np.empty(TILE)
    total = 0.0
    for start in range(begin, end, TILE):
        size = min(TILE, end - start)
        _load_tile(features, weight, start, size, x, w)
        _outputs(theta, x, first, s)
        _drop(mode, rows, s)
        for v in range(size):
            own[v] = s[target[start + v], v]
        _softmax(rows, s, top, norm)
        for v in range(size):  # in a loop of its own: beside log(norm) the large scores would round it away
            own[v] -= top[v]
        for v in range(size, TILE):
            own[v] = 0.0
        for v in range(TILE):
            total += w[v] * (fast_log(norm[v]) - own[v])
        _residuals(target, start, size, rows, mode, s, norm, w)
        _add_gradient(x, s, first, sign, gradient)
    return total


@njit(fastmath=SUMS, inline="always")
def _gaps(target, start, size, z, own):  # type: ignore[no-untyped-def]
    """Turn logits into gaps to the winner; `own` is the gap of the label, 0 where the tile is not full."""
    top = own  # its place serves twice
    for v in range(TILE):
        top[v] = z[0, v]
    for c in range(1, z.shape[0]):
        for v in range(TILE):
            top[v] = max(top[v], z[c, v])
    for c in range(z.shape[0]):
        for v in range(TILE):
            z[c, v] -= top[v]
    for v in range(size):
        own[v] = z[target[start + v], v]


@njit(fastmath=SUMS, inline="always")
def _moments(z, beta, s0, s1, s2):  # type: ignore[no-untyped-def]
    """Set the sums of e, e g and e g^2 over classes."""
    for v in range(TILE):
        s0[v] = s1[v] = s2[v] = 0.0
    for c in range(z.shape[0]):
        for v in range(TILE):
            gap = z[c, v]
            e = fast_exp(beta * gap)
            s0[v] += e
            s1[v] += e * gap
            s2[v] += e * gap * gap


@partial(compiled, fastmath=SUMS)
def _temperature(logits, target, weight, beta, begin, end):  # type: ignore[no-untyped-def]
    """Return the three sums over voxels from `begin` to `end`."""
    z, w, own = np.empty((logits.shape[0], TILE)), np.empty(TILE), np.empty(TILE)
    s0, s1, s2 = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    value, first, second = 0.0, 0.0, 0.0
    for start in range(begin, end, TILE):
        size = min(TILE, end - start)
        _load_tile(logits, weight, start, size, z, w)
        _gaps(target, start, size, z, own)
        _moments(z, beta, s0, s1, s2)
        for v in range(TILE):
            mean = s1[v] / s0[v]
            value += w[v] * (fast_log(s0[v]) - beta * own[v])
            first += w[v] * (mean - own[v])
            second += w[v] * (s2[v] / s0[v] - mean * mean)
    return value, first, second
