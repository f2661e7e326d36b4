r"""Expected Dice and volume of a structure with intervals, from how far they were off on labelled cases.

A number of a new case is its estimate e, and labelled cases i say how far estimates are off in units of a scale that is
known without labels: with :math:`r_i = |t_i - e_i| / s_i` and q the conformal quantile of r at the level
(:func:`segcal.trust.conformal.quantile`), the interval is :math:`e \pm q s`. Structures are taken apart, and nothing is
fitted, so the promise is exact whatever e and s are; good ones make it narrow:

- Dice: e is the expected Dice D of :mod:`segcal.trust.table`, or the mean Dice A of the pairs of members if that is
  lower: a mask is seldom better than its makers agree. :math:`s = 1 - D A + 0.02`. Draws are cases whose mask is not
  empty. Of an empty mask nothing is said: it is right or wrong as a whole, and the interval is 0 to 1.
- Volume: :math:`e = \sum p` and :math:`s = \sqrt{1 + \sum p (1 - p)}`, the spread of independent voxels; how much wider
  their dependence makes it is what the quantile measures. It does not go below 0.

The chance of a Dice below tau is the share of labelled cases that would put it there, :math:`e + s (t_i - e_i) / s_i <
\tau`, half a draw added for what was not seen.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.trust.conformal import count_draws, draws_needed, quantile, weights
from segcal.trust.table import Floats, SumTable

SMALLEST = 0.02


class Span(NamedTuple):
    """An estimate with its interval; infinite ends where the draws do not support the level."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Errors:
    """How far estimates of one kind were off: signed, in units of their scales, one per labelled case."""

    signed: Floats
    groups: tuple[str, ...]

    @property
    def draws(self) -> int:
        """How many draws there are."""
        return count_draws(self.groups)

    def supports(self, level: float) -> bool:
        """Return whether there are enough draws for a level."""
        return self.draws >= draws_needed(level)

    def span(self, value: float, scale: float, level: float, least: float, most: float = np.inf) -> Span:
        """Return the interval of an estimate, cut where no value can be."""
        reach = quantile(np.abs(self.signed), self.groups, level) * scale
        return Span(value, max(value - reach, least), min(value + reach, most))

    def chance_below(self, value: float, scale: float, limit: float) -> float | None:
        """Return how often what is estimated lies below a limit; None without labelled cases."""
        if not self.draws:
            return None
        below = weights(self.groups)[value + scale * self.signed < limit].sum()
        return float(below + 0.5 / (self.draws + 1))


def expected_dice(table: SumTable) -> Floats:
    """Return the expected Dice ``(cases, classes)``, no higher than the members agree."""
    return np.fmin(table.expected_dice, np.where(table.empty, np.nan, table.agreement))


def dice_scale(table: SumTable) -> Floats:
    """Return the scale of its error."""
    agreement = np.where(np.isnan(table.agreement), 1.0, table.agreement)
    return 1 - table.expected_dice * agreement + SMALLEST


def volume(table: SumTable) -> Floats:
    """Return the expected volume in voxels."""
    return table.prob


def volume_scale(table: SumTable) -> Floats:
    """Return the scale of its error."""
    return np.sqrt(1 + table.spread)


def dice_errors(table: SumTable, number: int) -> Errors:
    """Return how far the expected Dice of a class was off in labelled cases with a mask of it."""
    own = np.flatnonzero(~table.empty[:, number])
    off = (table.dice - expected_dice(table)) / dice_scale(table)
    return Errors(off[own, number], tuple(table.groups[i] for i in own))


def volume_errors(table: SumTable, number: int) -> Errors:
    """Return how far the expected volume of a class was off in labelled cases."""
    off = (table.truth - volume(table)) / volume_scale(table)
    return Errors(off[:, number], table.groups)


def review_limit(table: SumTable, number: int, tau: float, level: float) -> float | None:
    """Return the expected Dice at or below which masks are reviewed, so that few bad ones pass.

    Of masks with a Dice below tau at most 1 - level have a higher expected Dice, on average over draws. None where the
    labelled cases have too few such masks to know.
    """
    bad: NDArray[np.intp] = np.flatnonzero(~table.empty[:, number] & (table.dice[:, number] < tau))
    groups = [table.groups[i] for i in bad]
    if count_draws(groups) < draws_needed(level):
        return None
    return quantile(expected_dice(table)[bad, number], groups, level)
