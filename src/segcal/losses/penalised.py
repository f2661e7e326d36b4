r"""Cross-entropy plus a penalty on every voxel, the common part of ecp, mbls and nacl.

.. math:: L = L_{CE} + \lambda \, \frac{1}{|V|} \sum_{i \in V} R(z_i)

over the voxels :math:`V` that count. :math:`R` is a mean over classes, as in the published code; a formula that sums
over classes has a :math:`\lambda` that is C times smaller. Class weights act on the cross-entropy alone.
"""

from abc import abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from segcal.losses.base import Loss, Reduction, check_positive, reduced
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
