r"""Smooth ECE: a calibration error without bins to choose (Błasiok and Nakkiran 2024).

The residuals :math:`r_i - p_i` are smoothed along confidence with a Gaussian kernel that is reflected at 0 and 1, and
what remains is integrated; the width is the one at which error and width are equal:

.. math::
    \mathrm{smECE}_\sigma = \int_0^1 \Bigl|\frac1N \sum_i (r_i - p_i) K_\sigma(p_i, t)\Bigr| dt, \qquad
    \mathrm{smECE} = \sigma^* \text{ with } \mathrm{smECE}_{\sigma^*} = \sigma^* .

It is read from a curve with many bins, each of which acts at its centre: all voxels count. Moving a residual by half a
bin changes the integral by less than :math:`|r - p| / (\sqrt{2 \pi}\, \sigma B)`.
"""

import math

import numpy as np
import scipy

from segcal.statistics.reliability import Curve

HALVINGS = 45


def smooth_calibration_error(curve: Curve) -> float:
    """Return the smooth ECE.

    >>> count = np.array([0, 0, 10, 10])
    >>> round(smooth_calibration_error(Curve(count, np.array([0, 0, 5, 8]), np.array([0, 0, 6.0, 9.0]))), 6)
    0.1
    """
    total = curve.count.sum()
    if not total:
        return math.nan
    residual = (curve.right - curve.confidence) / total
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at(residual, middle) > middle else (low, middle)
    return high


def _at(residual: np.ndarray, width: float) -> float:
    """Return the error at one width; bins are cells of [0, 1], reflected at both ends."""
    smooth = scipy.ndimage.gaussian_filter1d(residual, width * len(residual), mode="reflect", truncate=6)
    return float(np.abs(smooth).sum())
