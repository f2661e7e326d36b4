r"""Proper scores and entropy, means over the voxels of a case; and the spread of what a softmax does not see.

.. math::
    \mathrm{NLL} = -\frac1N \sum_v \log q_{y_v}(v), \qquad
    \mathrm{Brier} = \frac1N \sum_v \sum_c (q_c(v) - [c = y_v])^2, \qquad
    H = -\frac1N \sum_v \sum_c q_c(v) \log q_c(v) .

The Brier score is the sum over classes (0 to 2), not their mean. The free energy of the input logits is
:math:`F(z) = \log \sum_c e^{z_c}`; a calibrator that is not translation-invariant sees it.
"""

import math

from segcal.statistics.case import FreeEnergy, Likelihood


def negative_log_likelihood(sums: Likelihood) -> float:
    """Return the mean NLL in nats."""
    return sums.nll / sums.voxels if sums.voxels else math.nan


def brier_score(sums: Likelihood) -> float:
    """Return the mean Brier score."""
    return sums.brier / sums.voxels if sums.voxels else math.nan


def root_brier_score(sums: Likelihood) -> float:
    """Return the root of the mean Brier score, an upper bound of the canonical calibration error (Gruber et al.)."""
    return math.sqrt(brier_score(sums)) if sums.voxels else math.nan


def mean_entropy(sums: Likelihood) -> float:
    """Return the mean predictive entropy in nats; smoothing raises it."""
    return sums.entropy / sums.voxels if sums.voxels else math.nan


def free_energy_std(moments: FreeEnergy) -> float:
    """Return the (population) standard deviation of the free energy over voxels."""
    return math.sqrt(moments.deviation / moments.voxels) if moments.voxels else math.nan
