r"""Calibration errors of the top label, from bins b with :math:`n_b` voxels, accuracy and mean confidence.

.. math::
    \mathrm{ECE} = \sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|, \qquad
    \mathrm{ACE} = \frac{1}{\#\{b : n_b > 0\}} \sum_{b : n_b > 0} |\mathrm{acc}_b - \mathrm{conf}_b|, \qquad
    \mathrm{MCE} = \max_{b : n_b > 0} |\mathrm{acc}_b - \mathrm{conf}_b| .

ACE is the *average* calibration error over non-empty bins (Kahl et al.), not the adaptive one with equal-mass bins.
"""

import math

import numpy as np

from segcal.statistics.reliability import Curve


def bin_gaps(curve: Curve) -> np.ndarray:
    """Return |accuracy - confidence| of each bin, NaN where it is empty."""
    empty = np.full(curve.count.shape, np.nan)
    return np.divide(np.abs(curve.right - curve.confidence), curve.count, out=empty, where=curve.count > 0)


def expected_calibration_error(curve: Curve) -> float:
    """Return the ECE; NaN without voxels.

    >>> expected_calibration_error(Curve(np.array([0, 4]), np.array([0, 3]), np.array([0.0, 3.6])))
    0.15000000000000002
    """
    total = curve.count.sum()
    return float(np.abs(curve.right - curve.confidence).sum() / total) if total else math.nan


def average_calibration_error(curve: Curve) -> float:
    """Return the ACE; NaN without voxels."""
    return float(np.nanmean(bin_gaps(curve))) if curve.count.any() else math.nan


def maximum_calibration_error(curve: Curve) -> float:
    """Return the MCE; NaN without voxels."""
    return float(np.nanmax(bin_gaps(curve))) if curve.count.any() else math.nan
