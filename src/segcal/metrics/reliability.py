r"""Calibration errors, from bins b with :math:`n_b` voxels, accuracy and mean confidence; NaN without voxels.

.. math::
    \mathrm{ECE} = \sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|, \qquad
    \mathrm{ACE} = \frac{1}{\#\{b : n_b > 0\}} \sum_{b : n_b > 0} |\mathrm{acc}_b - \mathrm{conf}_b|, \qquad
    \mathrm{MCE} = \max_{b : n_b > 0} |\mathrm{acc}_b - \mathrm{conf}_b| .

Debiased, the expected effect of chance on each bin is taken off (Kumar et al. 2019): a gap :math:`g_b` that was found
with :math:`n_b` voxels is taken for normal with variance :math:`s_b^2 = \mathrm{acc}_b (1 - \mathrm{acc}_b) / n_b`, and

.. math::
    \mathrm{ECE}_{deb} = \sum_b \frac{n_b}{N} (2 |g_b| - E|\mathcal N(g_b, s_b^2)|), \qquad
    E|\mathcal N(g, s^2)| = s \sqrt{2 / \pi}\, e^{-g^2 / 2 s^2} + g\, \mathrm{erf}(g / \sqrt 2 s) .

With equal mass, the bins hold as many voxels each, from a sample that is sorted by confidence.

ACE is the *average* calibration error over non-empty bins (Kahl et al.), not the adaptive one with equal-mass bins.

Class-wise, every class's probability is binned on its own:

.. math:: \mathrm{CECE} = \frac1C \sum_c \sum_b \frac{n_{b,c}}{N} |\mathrm{freq}_{b,c} - \mathrm{prob}_{b,c}| .

Boundary-aware (Zeevi et al.), the gap is that of each band k of distance from the true boundary:

.. math::
    \mathrm{BA\text{-}ECE} = \frac{\sum_k w_k |\mathrm{acc}_k - \mathrm{conf}_k|}{\sum_k w_k}, \qquad
    w_k = \frac{1}{1 + \bar d_k},

over non-empty bands, :math:`\bar d_k` being the mean distance in the band. Not defined for a label map without a
boundary.

Smooth (Błasiok and Nakkiran 2024), there are no bins to choose. The residuals :math:`r_i - p_i` are smoothed along
confidence with a Gaussian kernel that is reflected at 0 and 1, and what remains is integrated. The width is the one at
which error and width are equal:

.. math::
    \mathrm{smECE}_\sigma = \int_0^1 \Bigl|\frac1N \sum_i (r_i - p_i) K_\sigma(p_i, t)\Bigr| dt, \qquad
    \mathrm{smECE} = \sigma^* \text{ with } \mathrm{smECE}_{\sigma^*} = \sigma^* .

It is read from a curve with many bins, each of which acts at its centre: all voxels count. Moving a residual by half a
bin changes the integral by less than :math:`|r - p| / (\sqrt{2 \pi}\, \sigma B)`.
"""

import math

import numpy as np
import scipy

from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.statistics.boundary import Bands
from segcal.statistics.reliability import Curve
from segcal.statistics.voxel_sample import VoxelSample

HALVINGS = 45  # of the search for the width of the smooth error


def _bin_gaps(curve: Curve) -> np.ndarray:
    """Return |accuracy - confidence| of each bin, NaN where it is empty."""
    empty = np.full(curve.count.shape, np.nan)
    return np.divide(np.abs(curve.right - curve.confidence), curve.count, out=empty, where=curve.count > 0)


def expected_calibration_error(curve: Curve) -> float:
    """Return the ECE.

    >>> expected_calibration_error(Curve(np.array([0, 4]), np.array([0, 3]), np.array([0.0, 3.6])))
    0.15000000000000002
    """
    total = curve.count.sum()
    return float(np.abs(curve.right - curve.confidence).sum() / total) if total else math.nan


def debiased_calibration_error(curve: Curve) -> float:
    """Return the ECE less what chance adds to it, at least 0."""
    filled = curve.count > 0
    if not filled.any():
        return math.nan
    n, rate = curve.count[filled], curve.right[filled] / curve.count[filled]
    gap = np.abs(rate - curve.confidence[filled] / n)
    spread = np.sqrt(rate * (1 - rate) / n)
    ratio = np.divide(gap, spread, out=np.full(gap.shape, np.inf), where=spread > 0)
    inside = scipy.special.erf(ratio / math.sqrt(2))
    by_chance = spread * math.sqrt(2 / math.pi) * np.exp(-(ratio**2) / 2) + gap * inside
    return max(0.0, float(((2 * gap - by_chance) * n).sum() / n.sum()))


def equal_mass_calibration_error(sample: VoxelSample, bins: int = 15) -> float:
    """Return the ECE with as many voxels in each bin, within one; voxels of equal confidence are in one bin.

    Args:
        sample: voxels of a case.
        bins: how many bins; fewer where many voxels have one confidence.
    """
    if not len(sample.logit):
        return math.nan
    order = np.argsort(sample.logit, kind="stable")
    logit, gap = sample.logit[order], (sample.right - scipy.special.expit(sample.logit))[order]
    ends = np.linspace(0, len(gap), bins + 1).round().astype(int)[1:]
    ends = np.unique(np.searchsorted(logit, logit[ends[ends > 0] - 1], side="right"))
    return float(np.abs(np.add.reduceat(gap, [0, *ends[:-1]])).sum() / len(gap))


def average_calibration_error(curve: Curve) -> float:
    """Return the ACE."""
    return float(np.nanmean(_bin_gaps(curve))) if curve.count.any() else math.nan


def maximum_calibration_error(curve: Curve) -> float:
    """Return the MCE."""
    return float(np.nanmax(_bin_gaps(curve))) if curve.count.any() else math.nan


def classwise_calibration_error(curve: Curve, classes: str = "all") -> float:
    """Return the CECE of ``(classes, bins)`` curves.

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


def boundary_calibration_error(bands: Bands, bins_within_band: int | None = None) -> float:
    """Return BA-ECE.

    Args:
        bands: what was counted in each band.
        bins_within_band: None for one gap per band (the paper); a number of bins for an ECE inside each band, the
            other reading of the definition. It must be one of the numbers that were counted.
    """
    if bins_within_band is not None and bins_within_band not in bands.curves:
        raise InputError(
            f"bins_within_band is {bins_within_band}, but {sorted(bands.curves)} bins were counted. "
            "Choose one of these, or count with other bins."
        )
    curve = next(iter(bands.curves.values())) if bins_within_band is None else bands.curves[bins_within_band]
    curve = curve[: len(bands.count)]
    filled = bands.count > 0
    if not filled.any():
        return math.nan
    gaps = curve.right - curve.confidence
    if bins_within_band is None:
        gaps = gaps.sum(1, keepdims=True)
    errors = np.abs(gaps).sum(1)[filled] / bands.count[filled]
    weights = 1 / (1 + bands.distance[filled] / bands.count[filled])
    return float((weights * errors).sum() / weights.sum())


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
        low, high = (middle, high) if _smoothed(residual, middle) > middle else (low, middle)
    return high


def _smoothed(residual: np.ndarray, width: float) -> float:
    """Return the error at one width; bins are cells of [0, 1], reflected at both ends."""
    smooth = scipy.ndimage.gaussian_filter1d(residual, width * len(residual), mode="reflect", truncate=6)
    return float(np.abs(smooth).sum())
