r"""Losses of an image and class: soft Dice (``dice``), with cross-entropy (``ce_dice``), and with a calibration error.

For image b and class c, over the voxels :math:`V_b` that count,

.. math:: L_{bc} = 1 - \frac{2 \sum_{i \in V_b} p_{ic} y_{ic} + \epsilon}
                            {\sum_{i \in V_b} p_{ic} + \sum_{i \in V_b} y_{ic} + \epsilon},

with :math:`p = S(z)`, one-hot :math:`y` and :math:`\epsilon = 10^{-5}`; the loss is the mean over images and
classes, background included. These are the defaults of MONAI's DiceLoss with softmax. An image without a voxel that
counts is left out of the mean. Class weights multiply :math:`L_{bc}` and do not enter the mean's count, as in MONAI.

.. math:: L = \lambda_{CE} L_{CE} + \lambda_{D} L_{Dice}, \qquad \lambda_{CE} = \lambda_{D} = 1 .

Networks of ``ce_dice`` are the ones that need calibration: the Dice term rewards confidence wherever a region overlaps,
however often the single voxel is wrong.

The marginal L1 average calibration error (in ``ml1_ace``, ``ml1_ace_soft``) puts the probabilities :math:`p_{ic}` of
the voxels that count into M bins:

.. math::
    \mathrm{ACE}_{bc} = \frac{1}{|B|} \sum_{m \in B}
        \Bigl| \frac{\sum_i w_{im} (p_{ic} - y_{ic})}{\sum_i w_{im}} \Bigr|, \qquad
    L = L_{CE} + \lambda_D L_{Dice} + \lambda\, \mathrm{mean}_{bc} \mathrm{ACE}_{bc}

over the bins B that are not empty. Hard bins have :math:`w_{im} = 1` for the bin (lo, hi] of :math:`p_{ic}`; the
gradient goes through the mean probability of a bin alone. Soft bins share a voxel between the two nearest centres in
proportion; a bin is empty if its weights sum to less than 0.01. As published: M = 20, both factors 1, background
included.
References: Barfoot et al., MICCAI 2024 (hard) and 2025 (soft).
"""

from typing import Literal

import torch
from torch import Tensor

from segcal.losses.base import Loss, Reduction, check, check_positive, reduced
from segcal.losses.ce import cross_entropy
from segcal.types import IGNORED, Labels, Logits

SMOOTH = 1e-5
# The sum of weights below which a soft bin is empty.
EMPTY = 0.01


def dice_loss(
    logits: Logits,
    labels: Labels,
    class_weights: Tensor | None,
    reduction: Reduction,
    include_background: bool = True,
    batch: bool = False,
    smooth: float = SMOOTH,
) -> Tensor:
    """Return the soft Dice loss; voxels labelled :data:`segcal.types.IGNORED` do not count.

    With reduction "none" the result is ``(batch, classes)``, and zero for images in which no voxel counts. With
    `batch` there is one row: the images are one large image.
    """
    probs = torch.softmax(logits, dim=1).reshape(*logits.shape[:2], -1)
    flat = labels.reshape(len(labels), -1)
    # Class by class: no one-hot copy of the labels, and sums in a fixed order, which scatter does not have on a GPU.
    own = [flat == number for number in range(logits.shape[1])]
    overlap = torch.stack([torch.where(mine, probs[:, number], 0.0).sum(1) for number, mine in enumerate(own)], dim=1)
    truth = torch.stack([mine.sum(1) for mine in own], dim=1).to(probs.dtype)
    predicted = torch.where((flat != IGNORED)[:, None], probs, 0.0).sum(dim=2)
    seen = (flat != IGNORED).any(dim=1)
    if batch:
        overlap, truth, predicted = (sums.sum(dim=0, keepdim=True) for sums in (overlap, truth, predicted))
        seen = seen.any(dim=0, keepdim=True)
    terms = 1 - (2 * overlap + smooth) / (predicted + truth + smooth)
    if class_weights is not None:
        terms = terms * class_weights.to(terms.dtype)
    terms = torch.where(seen[:, None], terms, 0.0)[:, 0 if include_background else 1 :]
    return reduced(terms, seen.sum().clamp(min=1) * terms.shape[1], reduction)


class Dice(Loss):
    """Soft Dice loss.

    Args:
        class_weights, ignore_index, reduction: as of :class:`Loss`.
        include_background: whether class 0 enters the mean.
        batch: sum over the images of a batch before dividing.
        smooth: added above and below.
    """

    formula = "soft Dice, one value per image and class"

    def __init__(
        self,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        include_background: bool = True,
        batch: bool = False,
        smooth: float = SMOOTH,
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.include_background, self.batch = include_background, batch
        self.smooth = check_positive(smooth, "smooth")

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the Dice loss."""
        options = self.include_background, self.batch, self.smooth
        return dice_loss(logits, labels, self.class_weights, self.reduction, *options)


class CrossEntropyDice(Loss):
    """Cross-entropy plus soft Dice, means over the voxels that count.

    Args:
        class_weights: for the cross-entropy alone.
        ignore_index: the label of voxels that do not count.
        reduction: "mean" of each, or "sum" of each.
        ce_weight: factor on the cross-entropy.
        dice_weight: factor on the Dice loss.
        include_background: whether class 0 enters the Dice loss.
        batch: sum over the images of a batch before dividing in the Dice loss.
    """

    formula = "`ce` + `dice`"

    def __init__(
        self,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        ce_weight: float = 1.0,
        dice_weight: float = 1.0,
        include_background: bool = True,
        batch: bool = False,
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        unlike = (
            "the cross-entropy has one value per voxel and the Dice loss one per class. Choose mean or sum, or use ce"
        )
        check(reduction != "none", "reduction", reduction, f"{unlike} and dice side by side")
        self.ce_weight = check_positive(ce_weight, "ce_weight")
        self.dice_weight = check_positive(dice_weight, "dice_weight")
        self.include_background, self.batch = include_background, batch

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the weighted sum of both losses."""
        overlap = dice_loss(logits, labels, None, self.reduction, self.include_background, self.batch)
        entropy = cross_entropy(logits, labels, self.class_weights, self.reduction)
        return self.ce_weight * entropy + self.dice_weight * overlap


def calibration_terms(probs: Tensor, labels: Labels, bins: int, binning: Literal["hard", "soft"]) -> Tensor:
    """Return the ACE of every image and class, ``(batch, classes)``; zero for images in which no voxel counts."""
    probs, flat = probs.flatten(2), labels.flatten(1)
    counts = (flat != IGNORED)[:, None].to(probs.dtype)
    classes = torch.arange(probs.shape[1], device=probs.device)[:, None]
    gap = (probs - (flat[:, None] == classes).to(probs.dtype)) * counts
    weights, gaps = probs.new_zeros(2, *probs.shape[:2], bins)
    for index, weight in _shares(probs, bins, binning):
        weights = weights.scatter_add(2, index, weight * counts)
        gaps = gaps.scatter_add(2, index, weight * gap)
    filled = weights >= EMPTY
    errors = torch.where(filled, (gaps / torch.where(filled, weights, 1.0)).abs(), 0.0)
    return errors.sum(2) / filled.sum(2).clamp(min=1)


def _shares(probs: Tensor, bins: int, binning: str) -> list[tuple[Tensor, Tensor]]:
    """Return the bins of each probability, and how much of it is in each."""
    if binning == "hard":
        edges = torch.arange(1, bins, device=probs.device, dtype=probs.dtype) / bins
        return [(torch.bucketize(probs.detach(), edges), torch.ones_like(probs))]
    place = (probs * bins - 0.5).clamp(0, bins - 1)
    left = place.detach().floor().long().clamp(max=bins - 2)
    right_share = place - left
    return [(left, 1 - right_share), (left + 1, right_share)]


class HardL1ACE(Loss):
    """Cross-entropy, Dice and the calibration error of hard bins.

    Args:
        class_weights: for the cross-entropy alone.
        ignore_index: the label of voxels that do not count.
        reduction: "mean" of each, or "sum" of each.
        weight: factor on the calibration error.
        dice_weight: factor on the Dice loss.
        bins: how many bins, at least 2.
        include_background: whether class 0 enters the Dice loss and the calibration error.
    """

    formula = "`ce` + `dice` + weight · mean over images and classes of ACE, hard bins"
    binning: Literal["hard", "soft"] = "hard"

    def __init__(
        self,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        weight: float = 1.0,
        dice_weight: float = 1.0,
        bins: int = 20,
        include_background: bool = True,
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        unlike = "the cross-entropy has one value per voxel and the other terms one per class. Choose mean or sum"
        check(reduction != "none", "reduction", reduction, unlike)
        several = isinstance(bins, int) and not isinstance(bins, bool) and bins >= 2
        check(several, "bins", bins, "a whole number of at least 2 is needed. The paper uses 20")
        self.weight, self.dice_weight = check_positive(weight, "weight"), check_positive(dice_weight, "dice_weight")
        self.bins, self.include_background = bins, include_background

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the weighted sum of the three."""
        entropy = cross_entropy(logits, labels, self.class_weights, self.reduction)
        overlap = dice_loss(logits, labels, None, self.reduction, self.include_background)
        terms = calibration_terms(torch.softmax(logits, dim=1), labels, self.bins, self.binning)
        terms = terms[:, 0 if self.include_background else 1 :]
        seen = (labels != IGNORED).flatten(1).any(1).sum().clamp(min=1)
        return (
            entropy + self.dice_weight * overlap + self.weight * reduced(terms, seen * terms.shape[1], self.reduction)
        )


class SoftL1ACE(HardL1ACE):
    """Cross-entropy, Dice and the calibration error of soft bins; arguments as of :class:`HardL1ACE`."""

    formula = "the same, each voxel shared between the two nearest bins"
    binning = "soft"
