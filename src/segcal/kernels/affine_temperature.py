r"""Likelihood of temperature scaling with its first two derivatives, in one pass.

With gaps :math:`g_c = z_c - \max_k z_k` and :math:`E[\cdot]` the mean under :math:`S(\beta z)`,

.. math::
    f = \log\textstyle\sum_c e^{\beta g_c} - \beta g_y, \qquad
    f' = E[g] - g_y, \qquad f'' = E[g^2] - E[g]^2 .

A torch version for any device, and a fused one for the CPU that must agree with it; all sums in float64.
"""

from functools import partial

import numpy as np
import torch
from numba import njit
from torch import Tensor

from segcal.kernels.affine_exponential import SUMS, fast_exp, fast_log
from segcal.kernels.affine_numba import TILE, load_tile
from segcal.kernels.jit import compiled
from segcal.kernels.threads import cut, in_threads
from segcal.numerics import at_once

STEP_VALUES = 1 << 19


def temperature_terms(logits: Tensor, target: Tensor, weight: Tensor, beta: float) -> tuple[float, float, float]:
    """Return the weighted sums of f, f' and f''.

    Args:
        logits: ``(C, n)`` float32 or float64.
        target: ``(n,)`` int32 labels.
        weight: ``(n,)`` of the type of the logits.
        beta: the inverse temperature.
    """
    if logits.device.type == "cpu":
        ends, voxels = cut(logits.shape[1], TILE), (logits.numpy(), target.numpy(), weight.numpy())
        parts = in_threads(lambda part: _fused(*voxels, beta, ends[part], ends[part + 1]), len(ends) - 1)
        value, first, second = (sum(column) for column in zip(*parts, strict=True))
        return value, first, second
    return reference(logits, target, weight, beta)


def reference(logits: Tensor, target: Tensor, weight: Tensor, beta: float) -> tuple[float, float, float]:
    """Return the same sums by plain torch operations."""
    sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
    step = at_once(STEP_VALUES, logits.shape[0], logits.device)
    for start in range(0, logits.shape[1], step):
        part = slice(start, start + step)
        z, w = logits[:, part].double(), weight[part].double()
        gaps = z - z.amax(0)
        probs = torch.softmax(beta * gaps, dim=0)
        own = gaps.gather(0, target[None, part].long())[0]
        mean = (probs * gaps).sum(0)
        sums[0] += (w * (torch.logsumexp(beta * gaps, 0) - beta * own)).sum()
        sums[1] += (w * (mean - own)).sum()
        sums[2] += (w * ((probs * gaps.square()).sum(0) - mean.square())).sum()
    return float(sums[0]), float(sums[1]), float(sums[2])


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
def _fused(logits, target, weight, beta, begin, end):  # type: ignore[no-untyped-def]
    """Return the three sums over voxels from `begin` to `end`."""
    z, w, own = np.empty((logits.shape[0], TILE)), np.empty(TILE), np.empty(TILE)
    s0, s1, s2 = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    value, first, second = 0.0, 0.0, 0.0
    for start in range(begin, end, TILE):
        size = min(TILE, end - start)
        load_tile(logits, weight, start, size, z, w)
        _gaps(target, start, size, z, own)
        _moments(z, beta, s0, s1, s2)
        for v in range(TILE):
            mean = s1[v] / s0[v]
            value += w[v] * (fast_log(s0[v]) - beta * own[v])
            first += w[v] * (mean - own[v])
            second += w[v] * (s2[v] / s0[v] - mean * mean)
    return value, first, second
