r"""Soft Dice loss (``dice``), and cross-entropy plus soft Dice (``ce_dice``), the usual loss of segmentation networks.

For image b and class c, over the voxels :math:`V_b` that count,

.. math:: L_{bc} = 1 - \frac{2 \sum_{i \in V_b} p_{ic} y_{ic} + \epsilon}
                            {\sum_{i \in V_b} p_{ic} + \sum_{i \in V_b} y_{ic} + \epsilon},

with :math:`p = S(z)`, one-hot :math:`y` and :math:`\epsilon = 10^{-5}`; the loss is the mean over images and
classes, background included. These are the defaults of MONAI's DiceLoss with softmax. An image without a voxel that
counts is left out of the mean. Class weights multiply :math:`L_{bc}` and do not enter the mean's count, as in MONAI.

.. math:: L = \lambda_{CE} L_{CE} + \lambda_{D} L_{Dice}, \qquad \lambda_{CE} = \lambda_{D} = 1 .

Networks of ``ce_dice`` are the ones that need calibration: the Dice term rewards confidence wherever a region overlaps,
however often the single voxel is wrong.
"""

import torch
from torch import Tensor

from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check_positive, reduced
from segcal.losses.ce import cross_entropy
from segcal.types import IGNORED, Labels, Logits

SMOOTH = 1e-5


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
        if reduction == "none":
            raise InputError(
                "reduction is 'none', but the cross-entropy has one value per voxel and the Dice loss one per class. "
                "Choose mean or sum, or use ce and dice side by side."
            )
        self.ce_weight = check_positive(ce_weight, "ce_weight")
        self.dice_weight = check_positive(dice_weight, "dice_weight")
        self.include_background, self.batch = include_background, batch

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the weighted sum of both losses."""
        overlap = dice_loss(logits, labels, None, self.reduction, self.include_background, self.batch)
        entropy = cross_entropy(logits, labels, self.class_weights, self.reduction)
        return self.ce_weight * entropy + self.dice_weight * overlap
