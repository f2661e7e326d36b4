"""Sums over voxels of the negative log-likelihood, the Brier score and the predictive entropy."""

from dataclasses import dataclass

from segcal.statistics.additive import Table


@dataclass(frozen=True)
class Likelihood(Table):
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
