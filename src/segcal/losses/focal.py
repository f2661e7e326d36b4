r"""Focal loss (``focal``).

.. math:: L_i = -(1 - p_{i, y_i})^{\gamma} \log p_{i, y_i}, \qquad \gamma = 3

over the voxels that count. Voxels that are right and sure lose their say, which holds confidence back. With
:math:`\gamma = 0` it is the cross-entropy. Reference: Lin et al., ICCV 2017; Mukhoti et al., NeurIPS 2020.
"""

import torch
from torch import Tensor

from segcal.losses.base import Loss, Reduction, check_positive
from segcal.losses.ce import cross_entropy, label_weight
from segcal.types import IGNORED, Labels, Logits


def focal_loss(
    logits: Logits,
    labels: Labels,
    gamma: float = 3.0,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the focal loss; voxels labelled :data:`segcal.types.IGNORED` do not count."""
    entropy = cross_entropy(logits, labels, None, "none")
    # 1 - p without cancellation. The bound keeps the derivative of a power below 1 finite; the loss there is zero.
    missing = (-torch.expm1(-entropy)).clamp(min=torch.finfo(entropy.dtype).tiny)
    terms = missing**gamma * entropy
    weights = None if class_weights is None else class_weights.to(terms.dtype)
    if weights is not None:
        terms = terms * weights[labels.clamp(min=0)]
    if reduction == "none":
        return terms
    return terms.sum() if reduction == "sum" else terms.sum() / label_weight(labels, weights)


class Focal(Loss):
    """Focal loss over the voxels that count.

    Args:
        gamma: how fast sure voxels lose their say.
        class_weights: one factor a class, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

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
        return focal_loss(logits, labels, self.gamma, self.class_weights, self.reduction)
