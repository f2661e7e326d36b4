r"""Explicit confidence penalty (``ecp``).

.. math:: L_i = -\log p_{i, y_i} - \lambda \, \frac{1}{C} \sum_c (-p_{ic} \log p_{ic}), \qquad \lambda = 0.1

rewards entropy. The published code takes the mean over classes, and so does this; the paper's sum is C times the
weight. It can be negative: the entropy of an undecided voxel is worth up to :math:`\lambda \log(C) / C`.
Reference: Pereyra et al., ICLR workshop 2017.
"""

import torch
from torch import Tensor

from segcal.losses.penalised import PenalisedLoss
from segcal.types import Labels, Logits


class ConfidencePenalty(PenalisedLoss):
    """Cross-entropy minus weighted entropy; arguments as of :class:`PenalisedLoss`."""

    formula = "ce − weight · mean_c(−p_c log p_c)"

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the negative entropy of each voxel, as a mean over classes."""
        log_probs = torch.log_softmax(logits, dim=1)
        return (log_probs.exp() * log_probs).mean(dim=1)
