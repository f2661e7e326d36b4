r"""Overlap of truth and prediction, from the confusion matrix.

.. math::
    \mathrm{Dice}_c = \frac{2 TP}{2 TP + FP + FN}, \qquad \mathrm{IoU}_c = \frac{TP}{TP + FP + FN} .
"""

import math

import numpy as np

from segcal.checks import check_choice
from segcal.statistics.case import Confusion

# What a class counts that is absent (in truth and prediction; in truth only), by who uses it.
EMPTY = {
    "nan": (math.nan, 0.0),  # nnU-Net
    "one": (1.0, 0.0),  # MONAI with ignore_empty=False, LostInFolds
    "skip": (math.nan, math.nan),  # MONAI
    "forgive": (1.0, 1.0),  # MarginLoss
}


def class_dice(confusion: Confusion, empty: str = "nan") -> np.ndarray:
    """Return the Dice score of each class; NaN where it is not defined."""
    hits, truth, guess = _totals(confusion)
    return _fill(2 * hits, truth + guess, truth, guess, empty)


def class_iou(confusion: Confusion, empty: str = "nan") -> np.ndarray:
    """Return the intersection over union of each class; NaN where it is not defined."""
    hits, truth, guess = _totals(confusion)
    return _fill(hits, truth + guess - hits, truth, guess, empty)


def dice_score(confusion: Confusion, empty: str = "nan", include_background: bool = False) -> float:
    """Return the mean Dice score of the classes; NaN if none is defined.

    Args:
        confusion: truth against prediction.
        empty: what an absent class counts. "nan": nothing if it is absent in truth and prediction, 0 if it is
            predicted only (nnU-Net). "one": 1 and 0 (LostInFolds, MONAI with ignore_empty=False). "skip": nothing in
            both cases (MONAI). "forgive": 1 in both cases (MarginLoss).
        include_background: whether class 0 takes part.
    """
    return _mean(class_dice(confusion, empty)[0 if include_background else 1 :])


def mean_iou(confusion: Confusion, empty: str = "nan", include_background: bool = True) -> float:
    """Return the mean intersection over union; the arguments are those of :func:`dice_score`."""
    return _mean(class_iou(confusion, empty)[0 if include_background else 1 :])


def pixel_accuracy(confusion: Confusion) -> float:
    """Return the share of voxels whose prediction is right."""
    total = confusion.count.sum()
    return float(np.trace(confusion.count) / total) if total else math.nan


def _totals(confusion: Confusion) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.diagonal(confusion.count), confusion.count.sum(1), confusion.count.sum(0)


def _fill(above: np.ndarray, below: np.ndarray, truth: np.ndarray, guess: np.ndarray, empty: str) -> np.ndarray:
    check_choice(empty, "empty", tuple(EMPTY))
    absent, predicted_only = EMPTY[empty]
    scores = np.divide(above, below, out=np.full(len(above), absent), where=below > 0)
    return np.where((truth == 0) & (guess > 0), predicted_only, scores)


def _mean(scores: np.ndarray) -> float:
    defined = scores[~np.isnan(scores)]
    return float(defined.mean()) if defined.size else math.nan
