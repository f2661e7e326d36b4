r"""Explicit confidence penalty (``ecp``).

.. math:: L_i = -\log p_{i, y_i} - \lambda \, \frac{1}{C} \sum_c (-p_{ic} \log p_{ic}), \qquad \lambda = 0.1

rewards entropy. The published code takes the mean over classes, and so does this; the paper's sum is C times the
weight. It can be negative: the entropy of an undecided voxel is worth up to :math:`\lambda \log(C) / C`.
Reference: Pereyra et al., ICLR workshop 2017.
"""

import torch
from torch import Tensor

from segcal.losses.penalised import Penalised
from segcal.types import Labels, Logits


def negative_entropy(logits: Logits) -> Tensor:
    """Return the mean over classes of ``p log p`` of each voxel."""
    log_probs = torch.log_softmax(logits, dim=1)
    return (log_probs.exp() * log_probs).mean(dim=1)


class ConfidencePenalty(Penalised):
    """Cross-entropy minus weighted entropy.

    Args:
        weight: factor on the mean over classes of ``-p log p``.
        class_weights: one factor a class for the cross-entropy, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the negative entropy of each voxel."""
        return negative_entropy(logits)
