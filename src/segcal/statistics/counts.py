r"""The small tables of a case: likelihood, confusion, flips, ranking and the free energy of its logits.

Ranking: voxels are counted in bins of doubt :math:`1 - \max_c q_c`, eight to an octave from :math:`2^{-40}` to 1. Most
voxels of a segmentation are nearly certain; bins that are even in the logarithm tell 1 - 1e-6 from 1 - 1e-9, where
even bins of confidence would put both in one.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from segcal.statistics.additive import AdditiveTable


@dataclass(frozen=True)
class Likelihood(AdditiveTable):
    """Sums over the voxels that count.

    Attributes:
        voxels: how many there are.
        nll: sum of minus the log-probability of the true class.
        brier: sum of squared distances between the probabilities and the one-hot truth.
        entropy: sum of the entropy of the probabilities, in nats.
    """

    voxels: int
    nll: float
    brier: float
    entropy: float


@dataclass(frozen=True)
class Confusion(AdditiveTable):
    """Voxels by true and predicted class: ``(truth, prediction)`` int64, and how many did not count."""

    count: np.ndarray
    ignored: int


@dataclass(frozen=True)
class Flips(AdditiveTable):
    """Voxels whose predicted class a calibrator changed: another class is *strictly* above the old winner.

    Attributes:
        count: ``(from, to, harmful/beneficial/neutral)`` int64. Harmful flips leave the true class, beneficial ones
            reach it, neutral ones go from one wrong class to another.
        voxels: how many voxels were compared.
    """

    count: np.ndarray
    voxels: int


@dataclass(frozen=True)
class Ranking(AdditiveTable):
    """Voxels in bins of doubt, from the least to the most, and those whose prediction is wrong; int64."""

    count: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class FreeEnergy(AdditiveTable):
    r"""Moments of :math:`F(z) = \log \sum_c e^{z_c}` over the voxels of a case (Table 3 of the paper).

    Count, mean and the sum of squared deviations from it, which merge without losing digits to a large offset.
    """

    voxels: int
    mean: float
    deviation: float

    def __add__(self, other: Self) -> Self:
        """Return the moments of both together."""
        n, m = self.voxels, other.voxels
        if n == 0 or m == 0:
            return other if n == 0 else self
        gap = other.mean - self.mean
        return type(self)(
            voxels=n + m,
            mean=self.mean + gap * m / (n + m),
            deviation=self.deviation + other.deviation + gap * gap * n * m / (n + m),
        )
