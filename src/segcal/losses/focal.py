r"""Focal loss (``focal``).

.. math:: L_i = -(1 - p_{i, y_i})^{\gamma} \log p_{i, y_i}, \qquad \gamma = 3

over the voxels that count. Voxels that are right and sure weigh less and less, which holds confidence back. With
:math:`\gamma = 0` it is the cross-entropy. Reference: Lin et al., ICCV 2017; Mukhoti et al., NeurIPS 2020.
"""

import torch
from torch import Tensor

from segcal.losses.base import Loss, Reduction, check_positive, reduced
from segcal.losses.ce import cross_entropy, label_weight
from segcal.types import IGNORED, Labels, Logits


class Focal(Loss):
    """Focal loss over the voxels that count.

    Args:
        gamma: how fast the weight of sure voxels falls.
        class_weights, ignore_index, reduction: as of :class:`Loss`.
    """

    formula = "−(1 − p_y)^gamma log p_y"

    def __init__(
        self,
        gamma: float = 3.0,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.gamma = check_positive(gamma, "gamma")

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the focal loss."""
        entropy = cross_entropy(logits, labels, None, "none")
        # 1 - p without cancellation. The bound keeps the derivative of a power below 1 finite; the loss there is zero.
        missing = (-torch.expm1(-entropy)).clamp(min=torch.finfo(entropy.dtype).tiny)
        terms = missing**self.gamma * entropy
        weights = None if self.class_weights is None else self.class_weights.to(terms.dtype)
        if weights is not None:
            terms = terms * weights[labels.clamp(min=0)]
        return reduced(terms, label_weight(labels, weights), self.reduction)
