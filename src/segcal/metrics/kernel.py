r"""Calibration of all class probabilities together, by kernels that compare pairs of voxels.

With one-hot truth :math:`y_i` and probabilities :math:`q_i` of n voxels, the squared kernel calibration error (Widmann
et al. 2019, the unbiased estimate; it may fall below zero) and the canonical calibration error by a Dirichlet kernel
(Popordanoska et al. 2022) are

.. math::
    \mathrm{KCE} &= \frac{1}{n (n - 1)} \sum_{i \ne j} (y_i - q_i)^T (y_j - q_j)\, e^{-\|q_i - q_j\| / \nu}, \\
    \mathrm{ECE}_{KDE} &= \frac1n \sum_j \Bigl\|
        \frac{\sum_{i \ne j} k(q_j; q_i)\, y_i}{\sum_{i \ne j} k(q_j; q_i)} - q_j \Bigr\|_2 ,

with :math:`k(\cdot; q_i)` the density of :math:`\mathrm{Dirichlet}(1 + q_i / h)`. Bandwidths are fixed, so that numbers
before and after calibration can be compared. The work grows with n², so n is bounded
(:mod:`segcal.statistics.voxel_sample`).
"""

import math

import numpy as np
import scipy

from segcal.statistics.voxel_sample import VoxelSample


def kernel_calibration_error(sample: VoxelSample, bandwidth: float = 0.4) -> float:
    """Return the squared kernel calibration error.

    Args:
        sample: voxels with their log-probabilities.
        bandwidth: ν of the kernel; 0.4 is that of Kumar et al. (2018).
    """
    n = len(sample.label)
    if n < 2:
        return math.nan
    probs = np.exp(sample.log_probs)
    residual = _one_hot(sample) - probs
    squares = (probs**2).sum(1)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2 * probs @ probs.T, 0))
    terms = (residual @ residual.T) * np.exp(-distance / bandwidth)
    return float((terms.sum() - np.trace(terms)) / (n * (n - 1)))


def kernel_density_error(sample: VoxelSample, bandwidth: float = 0.02) -> float:
    """Return the canonical calibration error by kernel density.

    Args:
        sample: voxels with their log-probabilities.
        bandwidth: h of the kernel. MetricsReloaded takes 0.5 unless told otherwise, which is wider than the simplex.
    """
    if len(sample.label) < 2:
        return math.nan
    probs = np.exp(sample.log_probs)
    alpha = 1 + probs / bandwidth
    norm = scipy.special.gammaln(alpha.sum(1)) - scipy.special.gammaln(alpha).sum(1)
    weight = norm + sample.log_probs @ (probs / bandwidth).T  # (at, of)
    np.fill_diagonal(weight, -np.inf)
    weight = np.exp(weight - weight.max(1, keepdims=True))
    expected = weight @ _one_hot(sample) / weight.sum(1, keepdims=True)
    return float(np.linalg.norm(expected - probs, axis=1).mean())


def _one_hot(sample: VoxelSample) -> np.ndarray:
    return np.eye(sample.log_probs.shape[1])[sample.label]
