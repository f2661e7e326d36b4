r"""Class-wise expected calibration error: every class's probability, binned on its own.

.. math:: \mathrm{CECE} = \frac1C \sum_c \sum_b \frac{n_{b,c}}{N} |\mathrm{freq}_{b,c} - \mathrm{prob}_{b,c}| .
"""

import math

import numpy as np

from segcal.metrics.base import check_choice
from segcal.statistics.reliability import Curve


def classwise_calibration_error(curve: Curve, classes: str = "all") -> float:
    """Return the CECE of ``(classes, bins)`` curves; NaN without voxels.

    Args:
        curve: counts, hits and sums of probability.
        classes: which classes are averaged. "all": all C (Kull et al.). "present": those that are true somewhere.
            "up_to_largest": 0 to the largest true class (the code of the neighbour-aware paper). "sum": the sum over
            all C instead of a mean (that paper's Eq. 11).
    """
    check_choice(classes, "classes", ("all", "present", "up_to_largest", "sum"))
    total = curve.count[0].sum()
    if not total:
        return math.nan
    errors = np.abs(curve.right - curve.confidence).sum(1) / total
    if classes == "sum":
        return float(errors.sum())
    present = curve.right.sum(1) > 0
    if classes == "present":
        errors = errors[present]
    elif classes == "up_to_largest":
        errors = errors[: np.flatnonzero(present)[-1] + 1]
    return float(errors.mean())
