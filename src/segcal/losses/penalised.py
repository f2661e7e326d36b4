r"""Cross-entropy plus a penalty on every voxel: ``ecp``, ``mbls``, and the common part of ``nacl``.

.. math:: L = L_{CE} + \lambda \, \frac{1}{|V|} \sum_{i \in V} R(z_i)

over the voxels :math:`V` that count. :math:`R` is a mean over classes, as in the published code; a formula that sums
over classes has a :math:`\lambda` that is C times smaller. Class weights act on the cross-entropy alone.

- ``ecp``, the explicit confidence penalty: :math:`R(z_i) = -\frac{1}{C} \sum_c (-p_{ic} \log p_{ic})` with
  :math:`\lambda = 0.1` rewards entropy. The published code takes the mean over classes, and so does this; the paper's
  sum is C times the weight. It can be negative: the entropy of an undecided voxel is worth up to
  :math:`\lambda \log(C) / C`. Reference: Pereyra et al., ICLR workshop 2017.
- ``mbls``, margin-based label smoothing: :math:`R(z) = \frac1C \sum_c \max(0, \max_j z_j - z_c - m)` with m = 5 and
  :math:`\lambda = 0.1` holds the distances between the winning logit and the others below a margin; the winner
  contributes zero and counts in the mean. The quadratic penalty is the square of what exceeds the margin. (The code
  that was published squares before it cuts, which also punishes distances below the margin.) Reference: Liu et al.,
  CVPR 2022; Murugesan et al., MedIA 2023.
"""

from abc import abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from segcal.losses.base import Loss, Reduction, check_choice, check_positive, reduced
from segcal.losses.ce import cross_entropy, label_weight
from segcal.types import IGNORED, Labels, Logits

Penalty: TypeAlias = Literal["l1", "l2"]
PENALTIES = ("l1", "l2")


class PenalisedLoss(Loss):
    """Cross-entropy plus a penalty.

    Args:
        weight: factor on the penalty.
        class_weights: for the cross-entropy alone.
        ignore_index, reduction: as of :class:`Loss`.
    """

    def __init__(
        self,
        weight: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.weight = check_positive(weight, "weight")

    @abstractmethod
    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the penalty of each voxel ``(batch, *space)``; what stands at ignored voxels does not matter."""

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy plus the weighted penalty."""
        entropy = cross_entropy(logits, labels, self.class_weights, self.reduction)
        terms = torch.where(labels != IGNORED, self.penalty_map(logits, labels), 0.0)
        return entropy + self.weight * reduced(terms, label_weight(labels, None), self.reduction)


class ConfidencePenalty(PenalisedLoss):
    """Cross-entropy minus weighted entropy; arguments as of :class:`PenalisedLoss`."""

    formula = "ce − weight · mean_c(−p_c log p_c)"

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the negative entropy of each voxel, as a mean over classes."""
        log_probs = torch.log_softmax(logits, dim=1)
        return (log_probs.exp() * log_probs).mean(dim=1)


class MarginLabelSmoothing(PenalisedLoss):
    """Cross-entropy plus a penalty on logit distances beyond a margin.

    Args:
        margin: distance from the winning logit that is free.
        weight: factor on the penalty.
        penalty: "l1" for the excess, "l2" for its square.
        class_weights, ignore_index, reduction: as of :class:`PenalisedLoss`.
    """

    formula = "ce + weight · mean_c max(0, max_j z_j − z_c − margin)"

    def __init__(
        self,
        margin: float = 5.0,
        weight: float = 0.1,
        penalty: Penalty = "l1",
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight, class_weights, ignore_index, reduction)
        check_choice("penalty", penalty, PENALTIES)
        self.margin, self.penalty = check_positive(margin, "margin"), penalty

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the mean over classes of what exceeds the margin, or of its square."""
        excess = (logits.amax(dim=1, keepdim=True) - logits - self.margin).relu()
        return (excess if self.penalty == "l1" else excess.square()).mean(dim=1)
