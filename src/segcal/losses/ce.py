r"""Cross-entropy and what changes one voxel of it: ``ce``, ``label_smoothing``, ``focal``.

.. math:: L = \frac{\sum_{i \in V} w_{y_i} \, L_i}{\sum_{i \in V} w_{y_i}}, \qquad p_i = S(z_i)

over the voxels :math:`V` that count; without class weights, the mean over them. With weights the mean is divided by
their sum, as :class:`torch.nn.CrossEntropyLoss` does it. The loss of a voxel is

- ``ce``: :math:`L_i = -\log p_{i, y_i}`;
- ``label_smoothing``: :math:`L_i = (1 - \alpha) (-\log p_{i, y_i}) + \alpha \, \frac{1}{C} \sum_c (-\log p_{ic})` with
  :math:`\alpha = 0.1`, the cross-entropy with the target :math:`(1 - \alpha)` one-hot plus :math:`\alpha` uniform; it
  equals :class:`torch.nn.CrossEntropyLoss` with `label_smoothing`. Reference: Szegedy et al., CVPR 2016;
- ``focal``: :math:`L_i = -(1 - p_{i, y_i})^{\gamma} \log p_{i, y_i}` with :math:`\gamma = 3`. Voxels that are right and
  sure weigh less and less, which holds confidence back. With :math:`\gamma = 0` it is the cross-entropy. Reference: Lin
  et al., ICCV 2017; Mukhoti et al., NeurIPS 2020.
"""

import torch
from torch import Tensor
from torch.nn import functional

from segcal.arguments import fits
from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check_positive, reduced
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
    that of the labels; `targets` are shares of classes instead of labels, zero where ignored.
    """
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    how = "none" if reduction == "none" else "sum"
    truth = labels if targets is None else targets
    losses = functional.cross_entropy(
        logits, truth, weights, ignore_index=IGNORED, reduction=how, label_smoothing=smoothing
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


class LabelSmoothing(Loss):
    """Cross-entropy with labels that are a little uniform.

    Args:
        smoothing: the uniform part of the target, from 0 to 1.
        class_weights, ignore_index, reduction: as of :class:`Loss`.
    """

    formula = "(1 − smoothing) ce + smoothing · mean_c(−log p_c)"

    def __init__(
        self,
        smoothing: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        if not fits(smoothing, float) or not 0 <= smoothing <= 1:
            raise InputError(
                f"smoothing is {smoothing!r}, but a share from 0 to 1 is needed. Choose 0 for plain cross-entropy."
            )
        self.smoothing = float(smoothing)

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy with smoothed labels."""
        return cross_entropy(logits, labels, self.class_weights, self.reduction, self.smoothing)


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
