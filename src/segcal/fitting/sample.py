r"""A sample of voxels in which hard ones are frequent, with weights that undo it.

Voxel i of n is drawn with probability

.. math:: \pi_i = \min\bigl(1,\ m\,(\tfrac12 \tfrac1n + \tfrac12 \tfrac{h_i}{\sum_j h_j})\bigr), \qquad
          h_i = 1 - \max_c S(z_i)_c,

by systematic sampling, and gets the weight :math:`1 / \pi_i`. Whether a voxel is drawn depends on its logits alone,
never on its label, so the weighted likelihood is an unbiased estimate of that of all voxels.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Voxels(NamedTuple):
    """A batch of labelled voxels.

    Attributes:
        logits: ``(C, n)`` float32 or float64.
        labels: ``(n,)`` int32.
        weight: ``(n,)``, of the type of the logits.
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor


def draw(voxels: Voxels, quota: int, rng: np.random.Generator) -> Voxels:
    """Draw about `quota` voxels, hard ones more often, with weights that undo it."""
    if voxels.labels.numel() <= quota:
        return voxels
    hard = hardness(voxels.logits).double()
    probability = inclusion(hard, quota, float(voxels.labels.numel()), float(hard.sum()))
    index = systematic(probability, rng)
    return Voxels(voxels.logits[:, index], voxels.labels[index], (1 / probability[index]).to(voxels.weight.dtype))


def hardness(logits: Tensor) -> Tensor:
    """Return one minus the confidence of logits ``(C, n)``, never quite zero."""
    return 1 - torch.softmax(logits, dim=0).amax(0) + 1e-9


def inclusion(hard: Tensor, quota: int, total: float, total_hard: float) -> Tensor:
    """Return the probability with which each voxel is drawn, given the sums over all voxels."""
    return (quota * (0.5 / total + 0.5 / total_hard * hard)).clamp(max=1.0)


def systematic(probability: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of voxels drawn with these probabilities."""
    # Voxel i is drawn when the running sum passes a whole number minus a common random offset.
    running, offset = probability.cumsum(0, dtype=torch.float64), float(rng.random())
    whole = torch.arange(1, int(running[-1] + offset) + 1, dtype=torch.float64) - offset
    # Rounding may let one step of size 1 pass two whole numbers.
    return torch.searchsorted(running, whole).clamp(max=len(running) - 1).unique_consecutive()
