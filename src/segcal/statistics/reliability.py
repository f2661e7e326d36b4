r"""Reliability of the top label: in each bin of confidence, how many voxels, how many right, and their confidence.

The bins are (lo, hi] with edges :math:`k/B`; confidence 1 is in the last bin. Voxels are counted for several
regions:

- ``all``; ``right`` and ``wrong``, by whether the prediction is the true class;
- ``foreground``: the true class is not 0; ``union``: the true or the predicted class is not 0.

How much a curve varies between cases is kept in sums that add up, too (:class:`CurveSpread`). The accuracy of a bin is
:math:`p = \sum_i r_i / \sum_i n_i`, with :math:`n_i` voxels of case i in the bin, of which :math:`r_i` are right.
Voxels of one case are alike; what is independent is cases. The variance of such a ratio over cases is, to first order,

.. math:: \frac{m}{m - 1} \frac{\sum_i (r_i - p n_i)^2}{(\sum_i n_i)^2}
          = \frac{m}{m - 1} \frac{\sum r_i^2 - 2 p \sum r_i n_i + p^2 \sum n_i^2}{(\sum_i n_i)^2},

with m the cases that have voxels in the bin. Three more sums a bin therefore give an interval over cases, and no curve
of a case need be kept.
"""

from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from segcal.statistics.additive import AdditiveTable

REGIONS = ("all", "right", "wrong", "foreground", "union")


@dataclass(frozen=True)
class Curve(AdditiveTable):
    """Bins along the last axis."""

    count: np.ndarray  # voxels, int64
    right: np.ndarray  # those whose prediction is right (or, for one class, whose true class it is), int64
    confidence: np.ndarray  # the sum of their confidence (or of the class's probability), float64

    def __getitem__(self, index: int | slice) -> "Curve":
        """Return some of the curves that are stacked along the first axes."""
        return Curve(self.count[index], self.right[index], self.confidence[index])

    def summed(self, axis: int | tuple[int, ...]) -> "Curve":
        """Return the sum along axes."""
        return Curve(self.count.sum(axis), self.right.sum(axis), self.confidence.sum(axis))


def curves_by_band(count: np.ndarray, confidence: np.ndarray) -> Curve:
    """Return ``(bands, bins)`` curves from cells ``(bands, zones, wrong/right, bins)``."""
    return Curve(count.sum((1, 2)), count[:, :, 1].sum(1), confidence.sum((1, 2)))


def curves_by_region(count: np.ndarray, confidence: np.ndarray) -> dict[str, Curve]:
    """Return the curve of each of :data:`REGIONS` from cells ``(bands, zones, wrong/right, bins)``."""
    n, sums = count.sum(0), confidence.sum(0)
    nothing = np.zeros_like(n[0, 0])
    apart = Curve(n.sum(1), n[:, 1], sums.sum(1))
    return {
        "all": apart.summed(0),
        "right": Curve(n[:, 1].sum(0), n[:, 1].sum(0), sums[:, 1].sum(0)),
        "wrong": Curve(n[:, 0].sum(0), nothing, sums[:, 0].sum(0)),
        "foreground": apart[2],
        "union": apart[1:].summed(0),
    }


@dataclass(frozen=True)
class CurveSpread(AdditiveTable):
    """Sums over groups of cases, of the shape of a curve's count; a case that belongs to none is one."""

    cases: np.ndarray  # groups with voxels in the bin, int64
    counts: np.ndarray  # squared counts, float64
    rights: np.ndarray  # squared right ones, float64
    products: np.ndarray  # counts times right ones, float64

    @classmethod
    def of(cls, curve: Curve, before: Curve | None = None) -> "CurveSpread":
        """Return the sums of one group, or what they grew by since its curve was the one before."""
        count, right = curve.count.astype(float), curve.right.astype(float)
        found = cls((curve.count > 0).astype(np.int64), count**2, right**2, count * right)
        old = None if before is None else cls.of(before)
        return found if old is None else cls(*(getattr(found, f.name) - getattr(old, f.name) for f in fields(cls)))


def accuracy_error(curve: Curve, spread: CurveSpread) -> NDArray[np.float64]:
    """Return the standard error over groups of each bin's accuracy; NaN in bins of fewer than two groups.

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
