r"""Moments of the free energy :math:`F(z) = \log \sum_c e^{z_c}` over the voxels of a case (Table 3 of the paper)."""

from dataclasses import dataclass
from typing import Self

from segcal.statistics.additive import Table


@dataclass(frozen=True)
class FreeEnergy(Table):
    """Count, mean and squared deviations, which merge without losing digits to a large offset.

    Attributes:
        voxels: how many there are.
        mean: the mean of F.
        deviation: the sum of squared deviations from the mean.
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
