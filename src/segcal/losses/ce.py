r"""Cross-entropy, what changes one voxel of it, and penalties beside it.

.. math:: L = \frac{\sum_{i \in V} w_{y_i} \, L_i}{\sum_{i \in V} w_{y_i}}
              + \lambda \, \frac{1}{|V|} \sum_{i \in V} R(z_i), \qquad p_i = S(z_i)

over the voxels :math:`V` that count; without class weights, the mean over them. With weights the mean is divided by
their sum, as :class:`torch.nn.CrossEntropyLoss` does it. The loss of a voxel is

- ``ce``: :math:`L_i = -\log p_{i, y_i}`;
- ``label_smoothing``: :math:`L_i = (1 - \alpha) (-\log p_{i, y_i}) + \alpha \, \frac{1}{C} \sum_c (-\log p_{ic})` with
  :math:`\alpha = 0.1`, the cross-entropy with the target :math:`(1 - \alpha)` one-hot plus :math:`\alpha` uniform; it
  equals :class:`torch.nn.CrossEntropyLoss` with `label_smoothing`. Reference: Szegedy et al., CVPR 2016;
- ``focal``: :math:`L_i = -(1 - p_{i, y_i})^{\gamma} \log p_{i, y_i}` with :math:`\gamma = 3`. Voxels that are right and
  sure weigh less and less, which holds confidence back. With :math:`\gamma = 0` it is the cross-entropy. Reference: Lin
  et al., ICCV 2017; Mukhoti et al., NeurIPS 2020.

Two losses, and ``nacl`` (:mod:`segcal.losses.spatial`), add a penalty :math:`R` to ``ce``. It is a mean over classes,
as in the published code; a formula that sums over classes has a :math:`\lambda` that is C times smaller. Class weights
act on the cross-entropy alone.

- ``ecp``, the explicit confidence penalty: :math:`R(z_i) = -\frac{1}{C} \sum_c (-p_{ic} \log p_{ic})` with
  :math:`\lambda = 0.1` rewards entropy. The published code takes the mean over classes, and so does this; the paper's
  sum is C times the weight. It can be negative: the entropy of an undecided voxel is worth up to
  :math:`\lambda \log(C) / C`. Reference: Pereyra et al., ICLR workshop 2017.
- ``mbls``, margin-based label smoothing: :math:`R(z) = \frac1C \sum_c \max(0, \max_j z_j - z_c - m)` with m = 5 and
  :math:`\lambda = 0.1` holds the distances between the winning logit and the others below a margin. The winner
  contributes zero and counts in the mean. The quadratic penalty is the square of what exceeds the margin. (The code
  that was published squares before it cuts, which also punishes distances below the margin.) Reference: Liu et al.,
  CVPR 2022; Murugesan et al., MedIA 2023.
"""

from abc import abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segcal.arguments import fits
from segcal.losses.base import Loss, Reduction, check, check_choice, check_positive, reduced
from segcal.types import IGNORED, Labels, Logits

Penalty: TypeAlias = Literal["l1", "l2"]
PENALTIES = ("l1", "l2")


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
        share = fits(smoothing, float) and 0 <= smoothing <= 1
        check(share, "smoothing", smoothing, "a share from 0 to 1 is needed. Choose 0 for plain cross-entropy")
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
