r"""Calibration from a bounded sample of voxels (:mod:`segcal.statistics.voxel_sample`): kernels, Cox, Spiegelhalter.

All class probabilities together, by kernels that compare pairs of voxels: with one-hot truth :math:`y_i` and
probabilities :math:`q_i` of n voxels, the squared kernel calibration error (Widmann et al. 2019, the unbiased estimate;
it may fall below zero) and the canonical calibration error by a Dirichlet kernel (Popordanoska et al. 2022) are

.. math::
    \mathrm{KCE} &= \frac{1}{n (n - 1)} \sum_{i \ne j} (y_i - q_i)^T (y_j - q_j)\, e^{-\|q_i - q_j\| / \nu}, \\
    \mathrm{ECE}_{KDE} &= \frac1n \sum_j \Bigl\|
        \frac{\sum_{i \ne j} k(q_j; q_i)\, y_i}{\sum_{i \ne j} k(q_j; q_i)} - q_j \Bigr\|_2 ,

with :math:`k(\cdot; q_i)` the density of :math:`\mathrm{Dirichlet}(1 + q_i / h)`. Bandwidths are fixed, so that numbers
before and after calibration can be compared. The work grows with n², so n is bounded.

Is confidence the probability to be right? With confidence :math:`p_i` and :math:`r_i = 1` where the prediction is so:

- **Cox** (1958): the logistic regression :math:`\mathrm{logit} P(r = 1) = a + b\, \mathrm{logit}\, p`. Calibrated are a
  slope b of 1 and an intercept a of 0. A slope below 1 is too extreme (overconfident where sure), one above 1 is
  underconfident.
- **Spiegelhalter** (1986): :math:`Z = \sum_i (r_i - p_i)(1 - 2 p_i) / \sqrt{\sum_i (1 - 2 p_i)^2 p_i (1 - p_i)}`,
  standard normal if the voxels were independent and calibrated. Neighbouring voxels are not independent: read it as an
  effect, not as a test. It grows with the root of the number of voxels, which a sample bounds.
"""

import math

import numpy as np
import scipy

from segcal.statistics.voxel_sample import VoxelSample

STEPS = 100


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
        bandwidth: h of the kernel. MetricsReloaded takes 0.5 by default, which is wider than the simplex.
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


def cox_slope(sample: VoxelSample) -> float:
    """Return the slope; NaN where all are right, all wrong, or confidence tells them apart without error."""
    return _cox(sample)[1]


def cox_intercept(sample: VoxelSample) -> float:
    """Return the intercept; NaN as for :func:`cox_slope`."""
    return _cox(sample)[0]


def spiegelhalter_z(sample: VoxelSample) -> float:
    """Return Spiegelhalter's Z; NaN where no confidence is between 0.5 and 1."""
    p, rest = scipy.special.expit(sample.logit), scipy.special.expit(-sample.logit)
    spread = float(((1 - 2 * p) ** 2 * p * rest).sum())
    if spread == 0:
        return math.nan
    return float((np.where(sample.right, rest, -p) * (1 - 2 * p)).sum() / math.sqrt(spread))


def _cox(sample: VoxelSample) -> tuple[float, float]:
    """Return intercept and slope, by Newton's method on centred and scaled logits."""
    x, right = sample.logit, sample.right.astype(bool)
    if right.all() or not right.any():
        return math.nan, math.nan
    hit, miss = x[right], x[~right]
    if hit.min() >= miss.max() or hit.max() <= miss.min():  # no finite maximum
        return math.nan, math.nan
    middle, scale = float(x.mean()), float(x.std())
    design = np.stack([np.ones_like(x), (x - middle) / scale])
    beta = np.array([math.log(right.mean() / (1 - right.mean())), 0.0])
    loss = _deviance(beta @ design, right)
    for _ in range(STEPS):
        p = scipy.special.expit(beta @ design)
        gradient = design @ (right - p)
        step = np.linalg.solve((design * (p * (1 - p))) @ design.T, gradient)
        size = 1.0
        while (new := _deviance((beta + size * step) @ design, right)) > loss and size > 1e-6:
            size /= 2
        beta, loss = beta + size * step, min(new, loss)
        if np.abs(size * step).max() < 1e-12:
            break
    return float(beta[0] - beta[1] * middle / scale), float(beta[1] / scale)


def _deviance(eta: np.ndarray, right: np.ndarray) -> float:
    return float(np.logaddexp(0, np.where(right, -eta, eta)).sum())
