r"""Cross-entropy plus Dice plus the marginal L1 average calibration error (``ml1_ace``, ``ml1_ace_soft``).

For image b and class c, the probabilities :math:`p_{ic}` of the voxels that count are put into M bins, and

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

from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check_positive, reduced
from segcal.losses.ce import cross_entropy
from segcal.losses.dice import dice_loss
from segcal.types import IGNORED, Labels, Logits

EMPTY = 0.01


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
        if reduction == "none":
            raise InputError(
                "reduction is 'none', but the cross-entropy has one value per voxel and the other terms one per class. "
                "Choose mean or sum."
            )
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 2:
            raise InputError(f"bins is {bins!r}, but a whole number of at least 2 is needed. The paper uses 20.")
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
