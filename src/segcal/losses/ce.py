r"""Cross-entropy (``ce``).

.. math:: L = \frac{\sum_{i \in V} w_{y_i} \, (-\log p_{i, y_i})}{\sum_{i \in V} w_{y_i}}, \qquad p_i = S(z_i)

over the voxels :math:`V` that count; without class weights, the mean over them. With weights the mean is divided by
their sum, as :class:`torch.nn.CrossEntropyLoss` does it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from segcal.losses.base import Loss, Reduction, check_reduction
from segcal.types import IGNORED, Labels, Logits


def cross_entropy(
    logits: Logits, labels: Labels, weight: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """Return the cross-entropy; voxels labelled :data:`segcal.types.IGNORED` do not count.

    With reduction "none" the result has the shape of `labels`, and zero where a voxel does not count.
    """
    weight = None if weight is None else weight.to(logits.dtype)
    how = "none" if reduction == "none" else "sum"
    losses = functional.cross_entropy(logits, labels, weight, ignore_index=IGNORED, reduction=how)
    if reduction != "mean":
        return losses
    valid = labels != IGNORED
    if weight is None:
        return losses / valid.sum().clamp(min=1)
    total = torch.where(valid, weight[labels.clamp(min=0)], 0.0).sum()
    return losses / torch.where(total > 0, total, 1.0)


class CrossEntropy(Loss):
    """Cross-entropy over the voxels that count.

    Args:
        weight: one factor a class, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = IGNORED, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight, ignore_index)
        self.reduction = check_reduction(reduction)

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy."""
        return cross_entropy(logits, labels, self.weight, self.reduction)
