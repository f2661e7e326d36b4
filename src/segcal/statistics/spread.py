r"""How much a reliability curve varies between cases, in sums that add up.

The accuracy of a bin is :math:`p = \sum_i r_i / \sum_i n_i`, with :math:`n_i` voxels of case i in the bin, of which
:math:`r_i` are right. Voxels of one case are alike; what is independent is cases. The variance of such a ratio over
cases is, to first order,

.. math:: \frac{m}{m - 1} \frac{\sum_i (r_i - p n_i)^2}{(\sum_i n_i)^2}
          = \frac{m}{m - 1} \frac{\sum r_i^2 - 2 p \sum r_i n_i + p^2 \sum n_i^2}{(\sum_i n_i)^2},

with m the cases that have voxels in the bin. Three more sums a bin therefore give an interval over cases, and no curve
of a case need be kept.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from segcal.statistics.additive import AdditiveTable
from segcal.statistics.reliability import Curve


@dataclass(frozen=True)
class CurveSpread(AdditiveTable):
    """Sums over cases, of the shape of a curve's count.

    Attributes:
        cases: those with voxels in the bin, int64.
        counts: the sum of squared counts, float64.
        rights: the sum of squared right ones, float64.
        products: the sum of counts times right ones, float64.
    """

    cases: np.ndarray
    counts: np.ndarray
    rights: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, curve: Curve) -> "CurveSpread":
        """Return the sums of one case."""
        count, right = curve.count.astype(float), curve.right.astype(float)
        return cls((curve.count > 0).astype(np.int64), count**2, right**2, count * right)


def accuracy_error(curve: Curve, spread: CurveSpread) -> NDArray[np.float64]:
    """Return the standard error over cases of each bin's accuracy; NaN in bins of fewer than two cases.

    >>> one = Curve(np.array([4]), np.array([4]), np.array([3.6]))
    >>> other = Curve(np.array([4]), np.array([2]), np.array([3.6]))
    >>> accuracy_error(one + other, CurveSpread.of(one) + CurveSpread.of(other)).round(6).tolist()
    [0.25]
    """
    cases, total = spread.cases.astype(float), curve.count.astype(float)
    share = curve.right / np.maximum(total, 1)
    squares = np.maximum(spread.rights - 2 * share * spread.products + share**2 * spread.counts, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = cases / (cases - 1) * squares / total**2
    return np.sqrt(np.where(cases > 1, variance, np.nan))


def accuracy_interval(
    curve: Curve, error: NDArray[np.float64], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the interval of each bin's accuracy, within [0, 1]; NaN where there is no error."""
    reach = NormalDist().inv_cdf(0.5 + level / 2) * error
    share = curve.right / np.maximum(curve.count, 1)
    return np.clip(share - reach, 0, 1), np.clip(share + reach, 0, 1)
