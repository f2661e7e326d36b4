r"""Cross-entropy plus soft Dice (``ce_dice``), the usual loss of segmentation networks.

.. math:: L = \lambda_{CE} L_{CE} + \lambda_{D} L_{Dice}, \qquad \lambda_{CE} = \lambda_{D} = 1 .

Its networks are the ones that need calibration: the Dice term rewards confidence wherever a region overlaps, however
often the single voxel is wrong.
"""

from torch import Tensor

from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check_positive
from segcal.losses.ce import cross_entropy
from segcal.losses.dice import dice_loss
from segcal.types import IGNORED, Labels, Logits


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
