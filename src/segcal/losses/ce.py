r"""Cross-entropy (``ce``).

.. math:: L = \frac{\sum_{i \in V} w_{y_i} \, (-\log p_{i, y_i})}{\sum_{i \in V} w_{y_i}}, \qquad p_i = S(z_i)

over the voxels :math:`V` that count; without class weights, the mean over them. With weights the mean is divided by
their sum, as :class:`torch.nn.CrossEntropyLoss` does it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from segcal.losses.base import Loss, Reduction
from segcal.types import IGNORED, Labels, Logits


def cross_entropy(
    logits: Logits,
    labels: Labels,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
    smoothing: float = 0.0,
    targets: Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy; voxels labelled :data:`segcal.types.IGNORED` do not count.

    With reduction "none" the result has the shape of `labels`, and zero where a voxel does not count. `smoothing` is
    that of :mod:`segcal.losses.label_smoothing`; `targets` are shares of classes instead of labels, zero where ignored.
    """
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    how = "none" if reduction == "none" else "sum"
    losses = functional.cross_entropy(
        logits,
        labels if targets is None else targets,
        weights,
        ignore_index=IGNORED,
        reduction=how,
        label_smoothing=smoothing,
    )
    return losses / label_weight(labels, weights) if reduction == "mean" else losses


def label_weight(labels: Labels, class_weights: Tensor | None) -> Tensor:
    """Return what a mean over voxels is divided by: how many count, or the weights of their labels.

    Where all weights are zero it is infinite: nothing counts, and the mean is zero.
    """
    valid = labels != IGNORED
    if class_weights is None:
        return valid.sum().clamp(min=1)
    total = torch.where(valid, class_weights[labels.clamp(min=0)], 0.0).sum()
    return torch.where(total > 0, total, torch.inf)


class CrossEntropy(Loss):
    """Cross-entropy over the voxels that count; arguments as of :class:`Loss`."""

    formula = "−log p_y"

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy."""
        return cross_entropy(logits, labels, self.class_weights, self.reduction)
