r"""Boundary-aware calibration error (Zeevi et al.), from the gap in each band of distance from the true boundary.

.. math::
    \mathrm{BA\text{-}ECE} = \frac{\sum_k w_k |\mathrm{acc}_k - \mathrm{conf}_k|}{\sum_k w_k}, \qquad
    w_k = \frac{1}{1 + \bar d_k},

over non-empty bands, :math:`\bar d_k` being the mean distance in the band. Not defined for a label map without a
boundary.
"""

import math

import numpy as np

from segcal.errors import InputError
from segcal.statistics.boundary import Bands


def boundary_calibration_error(bands: Bands, bins_within_band: int | None = None) -> float:
    """Return BA-ECE; NaN without a boundary.

    Args:
        bands: what was counted in each band.
        bins_within_band: None for one gap a band (the paper); a number of bins for an ECE inside each band, the other
            reading of the definition. It must be one of the numbers that were counted.
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
