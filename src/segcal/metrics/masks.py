r"""Masks: overlap of truth and prediction, distance of their surfaces, and what a calibrator changed.

.. math::
    \mathrm{Dice}_c = \frac{2 TP}{2 TP + FP + FN}, \qquad \mathrm{IoU}_c = \frac{TP}{TP + FP + FN} .

The Hausdorff distance is the mean over foreground classes of a case. A class that is empty in truth and prediction does
not count. A class that is empty in one of them has no distance. It counts as the diagonal of the case, the largest
distance there can be, so that a missed structure is not rewarded.

The flip rate is a share of all voxels that count. Harmful, beneficial and neutral flips are shares of the flipped
voxels, and not defined where none flipped.
"""

import math

import numpy as np

from segcal.checks import check_choice
from segcal.statistics.additive import Confusion, Flips
from segcal.statistics.surface import BOTH_EMPTY, ONE_EMPTY, Surface

# What a class counts that is absent (in truth and prediction; in truth only), by who uses it.
EMPTY = {
    "nan": (math.nan, 0.0),  # nnU-Net
    "one": (1.0, 0.0),  # MONAI with ignore_empty=False, LostInFolds
    "skip": (math.nan, math.nan),  # MONAI
    "forgive": (1.0, 1.0),  # MarginLoss
}


def dice_score(confusion: Confusion, empty: str = "nan", include_background: bool = False) -> float:
    """Return the mean Dice score of the classes; NaN if none is defined.

    Args:
        confusion: truth against prediction.
        empty: what an absent class counts. "nan": nothing if it is absent in truth and prediction, 0 if it is
            predicted only (nnU-Net). "one": 1 and 0 (LostInFolds, MONAI with ignore_empty=False). "skip": nothing in
            both cases (MONAI). "forgive": 1 in both cases (MarginLoss).
        include_background: whether class 0 takes part.
    """
    hits, truth, guess = _totals(confusion)
    return _mean(_filled(2 * hits, truth + guess, truth, guess, empty)[0 if include_background else 1 :])


def mean_iou(confusion: Confusion, empty: str = "nan", include_background: bool = True) -> float:
    """Return the mean intersection over union; the arguments are those of :func:`dice_score`."""
    hits, truth, guess = _totals(confusion)
    return _mean(_filled(hits, truth + guess - hits, truth, guess, empty)[0 if include_background else 1 :])


def pixel_accuracy(confusion: Confusion) -> float:
    """Return the share of voxels whose prediction is right."""
    total = confusion.count.sum()
    return float(np.trace(confusion.count) / total) if total else math.nan


def _totals(confusion: Confusion) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.diagonal(confusion.count), confusion.count.sum(1), confusion.count.sum(0)


def _filled(above: np.ndarray, below: np.ndarray, truth: np.ndarray, guess: np.ndarray, empty: str) -> np.ndarray:
    """Return the score of each class; NaN where it is not defined."""
    check_choice(empty, "empty", tuple(EMPTY))
    absent, predicted_only = EMPTY[empty]
    scores = np.divide(above, below, out=np.full(len(above), absent), where=below > 0)
    return np.where((truth == 0) & (guess > 0), predicted_only, scores)


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else math.nan


def hausdorff_distance(surface: Surface, one_empty: str = "diagonal") -> float:
    """Return the Hausdorff distance.

    Args:
        surface: the distances of each class.
        one_empty: what a class counts that only truth or only prediction has: "diagonal", or "nan" to leave it out.
    """
    return _mean_distance(surface.largest, surface, one_empty)


def hausdorff_95(surface: Surface, one_empty: str = "diagonal", percentile_of: str = "each") -> float:
    """Return the 95th percentile of the surface distances.

    Args:
        surface: the distances of each class.
        one_empty: as for :func:`hausdorff_distance`.
        percentile_of: "each": the larger of the percentiles of the two directions (MONAI); "both": the percentile of
            both directions taken together (medpy).
    """
    check_choice(percentile_of, "percentile_of", ("each", "both"))
    return _mean_distance(surface.each_95 if percentile_of == "each" else surface.both_95, surface, one_empty)


def _mean_distance(distances: np.ndarray, surface: Surface, one_empty: str) -> float:
    check_choice(one_empty, "one_empty", ("diagonal", "nan"))
    penalty = surface.diagonal if one_empty == "diagonal" else math.nan
    return _mean(np.where(surface.missing == ONE_EMPTY, penalty, distances)[surface.missing != BOTH_EMPTY])


def flip_rate(flips: Flips) -> float:
    """Return the share of voxels that flipped."""
    return float(flips.count.sum() / flips.voxels) if flips.voxels else math.nan


def flip_share(flips: Flips, kind: int) -> float:
    """Return the share of flips that are of a kind: harmful, beneficial or neutral."""
    total = flips.count.sum()
    return float(flips.count[:, :, kind].sum() / total) if total else math.nan
