"""Hausdorff distance between the true and the predicted mask: the mean over foreground classes of a case.

A class that is empty in truth and prediction does not count. A class that is empty in one of them has no distance; it
counts as the diagonal of the case, the largest distance there can be, so that a missed structure is not rewarded.
"""

import math

import numpy as np

from segcal.checks import check_choice
from segcal.statistics.surface import BOTH_EMPTY, ONE_EMPTY, Surface


def hausdorff_distance(surface: Surface, one_empty: str = "diagonal") -> float:
    """Return the Hausdorff distance.

    Args:
        surface: the distances of each class.
        one_empty: what a class counts that only truth or only prediction has: "diagonal", or "nan" to leave it out.
    """
    return _mean(surface.largest, surface, one_empty)


def hausdorff_95(surface: Surface, one_empty: str = "diagonal", percentile_of: str = "each") -> float:
    """Return the 95th percentile of the surface distances.

    Args:
        surface: the distances of each class.
        one_empty: as for :func:`hausdorff_distance`.
        percentile_of: "each": the larger of the percentiles of the two directions (MONAI); "both": the percentile of
            both directions taken together (medpy).
    """
    check_choice(percentile_of, "percentile_of", ("each", "both"))
    return _mean(surface.each_95 if percentile_of == "each" else surface.both_95, surface, one_empty)


def _mean(distances: np.ndarray, surface: Surface, one_empty: str) -> float:
    check_choice(one_empty, "one_empty", ("diagonal", "nan"))
    penalty = surface.diagonal if one_empty == "diagonal" else math.nan
    values = np.where(surface.missing == ONE_EMPTY, penalty, distances)[surface.missing != BOTH_EMPTY]
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else math.nan
