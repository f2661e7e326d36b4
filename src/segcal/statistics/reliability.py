r"""Reliability of the top label: in each bin of confidence, how many voxels, how many right, and their confidence.

The bins are (lo, hi] with edges :math:`k/B`; confidence 1 is in the last bin. Voxels are counted for several
regions:

- ``all``; ``right`` and ``wrong``, by whether the prediction is the true class;
- ``foreground``: the true class is not 0; ``union``: the true or the predicted class is not 0.
"""

from dataclasses import dataclass

import numpy as np

from segcal.statistics.additive import AdditiveTable

REGIONS = ("all", "right", "wrong", "foreground", "union")


@dataclass(frozen=True)
class Curve(AdditiveTable):
    """Bins along the last axis.

    Attributes:
        count: voxels, int64.
        right: those whose prediction is right (or, for one class, whose true class it is), int64.
        confidence: the sum of their confidence (or of the class's probability), float64.
    """

    count: np.ndarray
    right: np.ndarray
    confidence: np.ndarray

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
