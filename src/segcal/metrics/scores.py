r"""Proper scores, entropy, and whether confidence tells right voxels from wrong ones.

.. math::
    \mathrm{NLL} = -\frac1N \sum_v \log q_{y_v}(v), \qquad
    \mathrm{Brier} = \frac1N \sum_v \sum_c (q_c(v) - [c = y_v])^2, \qquad
    H = -\frac1N \sum_v \sum_c q_c(v) \log q_c(v) .

The Brier score is the sum over classes (0 to 2), not their mean. The free energy of the input logits is
:math:`F(z) = \log \sum_c e^{z_c}`; a calibrator that is not translation-invariant sees it.

Area under the risk-coverage curve. Voxels are sorted from the most to the least confident; the risk at coverage k/N is
the share of errors among the first k:

.. math:: \mathrm{AURC} = \frac1N \sum_{k=1}^N \frac{\#\text{errors among the first } k}{k} .

Voxels of one bin of uncertainty count as tied, and a tie stands for the mean over its orders. With m voxels and e
errors in a bin, after n voxels and f errors, its part of the sum has the closed form

.. math:: \sum_{i=1}^m \frac{f + e i / m}{n + i} = e + \left(f - \frac{e n}{m}\right) (H_{n+m} - H_n) .

The bins are eight to an octave of uncertainty, so voxels count as tied only if their uncertainties differ by less than
one eighth. On real cases AURC differs from the exact one by less than 0.1 %.

The generalised risk at coverage k/N is the share of all voxels that are among the first k and wrong. The risk divides
by k instead of N, so the most confident errors count most there (Traub et al. 2024). The area under the generalised
curve through the origin, with ties as above, is

.. math:: \mathrm{AUGRC} = \frac1{N^2} \sum_b m_b \left(f_b + \frac{e_b}2\right)
    = a (1 - a) (1 - \mathrm{AUROC}) + \frac{(1 - a)^2}2

over the bins b, with the accuracy a and the AUROC of errors.

The area under the ROC curve of errors is a share of pairs of a wrong and a right voxel. In these the wrong one is more
uncertain; a tie counts half. 1 finds every error, 0.5 is a guess.
"""

import math
from typing import Literal

import numpy as np
import scipy

from segcal.statistics.additive import FreeEnergy, Likelihood, Ranking


def voxel_mean(sums: Likelihood, of: Literal["nll", "brier", "entropy"]) -> float:
    """Return the mean over voxels."""
    total: float = getattr(sums, of)
    return total / sums.voxels if sums.voxels else math.nan


def root_brier_score(sums: Likelihood) -> float:
    """Return the root of the mean Brier score, an upper bound of the canonical calibration error (Gruber et al.)."""
    return math.sqrt(voxel_mean(sums, "brier"))


def free_energy_std(moments: FreeEnergy) -> float:
    """Return the (population) standard deviation of the free energy over voxels."""
    return math.sqrt(moments.deviation / moments.voxels) if moments.voxels else math.nan


def area_under_risk_coverage(ranking: Ranking) -> float:
    """Return the AURC.

    >>> round(area_under_risk_coverage(Ranking(np.array([1, 0, 2]), np.array([0, 0, 1]))), 6)
    0.194444
    """
    total = float(ranking.count.sum())
    if not total:
        return math.nan
    filled = ranking.count > 0
    m, e = ranking.count[filled].astype(float), ranking.wrong[filled].astype(float)
    n, f = np.cumsum(m) - m, np.cumsum(e) - e
    harmonic = scipy.special.digamma(n + m + 1) - scipy.special.digamma(n + 1)
    return float((e + (f - e * n / m) * harmonic).sum() / total)


def area_under_generalised_risk_coverage(ranking: Ranking) -> float:
    """Return the AUGRC.

    >>> area_under_generalised_risk_coverage(Ranking(np.array([1, 0, 2]), np.array([0, 0, 1])))
    0.1111111111111111
    """
    total = int(ranking.count.sum())
    before = np.cumsum(ranking.wrong) - ranking.wrong
    return float((ranking.count * (before + ranking.wrong / 2)).sum()) / total**2 if total else math.nan


def area_under_error_roc(ranking: Ranking) -> float:
    """Return the AUROC of errors; NaN where nothing or everything is wrong.

    >>> area_under_error_roc(Ranking(np.array([1, 0, 2]), np.array([0, 0, 1])))
    0.75
    """
    wrong = ranking.wrong.astype(float)
    right = ranking.count - wrong
    pairs = wrong.sum() * right.sum()
    below = np.cumsum(right) - right
    return float((wrong * (below + right / 2)).sum() / pairs) if pairs else math.nan
