r"""Is confidence the probability to be right? Two classic answers, from a sample of voxels.

With confidence :math:`p_i` and :math:`r_i = 1` where the prediction is right:

- **Cox** (1958): the logistic regression :math:`\mathrm{logit} P(r = 1) = a + b\, \mathrm{logit}\, p`. Calibrated are a
  slope b of 1 and an intercept a of 0; b < 1 is too extreme (overconfident where sure), b > 1 too timid.
- **Spiegelhalter** (1986): :math:`Z = \sum_i (r_i - p_i)(1 - 2 p_i) / \sqrt{\sum_i (1 - 2 p_i)^2 p_i (1 - p_i)}`,
  standard normal if the voxels were independent and calibrated. Neighbouring voxels are not independent: read it as an
  effect, not as a test. It grows with the root of the number of voxels, which a sample bounds.
"""

import math

import numpy as np
import scipy

from segcal.statistics.voxel_sample import VoxelSample

STEPS = 100


def cox_slope(sample: VoxelSample) -> float:
    """Return the slope; NaN where all are right, all wrong, or confidence tells them apart without error."""
    return _cox(sample)[1]


def cox_intercept(sample: VoxelSample) -> float:
    """Return the intercept; NaN as for :func:`cox_slope`."""
    return _cox(sample)[0]


def spiegelhalter_z(sample: VoxelSample) -> float:
    """Return Spiegelhalter's Z; NaN where no confidence is between 0.5 and 1."""
    p, doubt = scipy.special.expit(sample.logit), scipy.special.expit(-sample.logit)
    spread = float(((1 - 2 * p) ** 2 * p * doubt).sum())
    if spread == 0:
        return math.nan
    return float((np.where(sample.right, doubt, -p) * (1 - 2 * p)).sum() / math.sqrt(spread))


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
