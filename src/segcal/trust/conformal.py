r"""Conformal inference over cases: what earlier draws say of the next one, whatever their distribution.

A draw is a group (patient, site, video), or a case that belongs to none. Of K earlier draws and a new one that are
exchangeable, each is the odd one with the same chance :math:`1 / (K + 1)`; a draw of several cases shares its chance
among them (Lee, Barber and Willett, 2023, "hierarchical conformal prediction"; with one case a draw this is split
conformal prediction). So with the weights :math:`w_i = 1 / ((K + 1) n_{g(i)})` of case i in a group of n cases:

- the new score is at most the smallest s with :math:`\sum_i w_i [s_i \le s] \ge L`, with probability at least L
  (:func:`quantile`); with one case a draw it is the :math:`\lceil (K + 1) L \rceil`-th smallest;
- :math:`p = \sum_i w_i [s_i \ge s] + 1 / (K + 1)` is at most a with probability at most a (:func:`p_value`);
- for losses in [0, 1] that do not grow along a grid, the first place of the grid with
  :math:`\frac{K}{K + 1} \bar\ell + \frac{1}{K + 1} \le a` has an expected loss of at most a (:func:`first_controlled`;
  Angelopoulos et al., 2024, "conformal risk control"; the mean is over groups of the mean over their cases).

All three are averages over draws of earlier and new cases, not promises for one case.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segcal.errors import InputError

# Sums of weights such as 1 / 11 + ... + 1 / 11 are off by rounding.
SLACK = 1e-9


def draws_needed(level: float) -> int:
    """Return the least number of draws that can support a level: 1 / (1 - level) - 1.

    >>> draws_needed(0.9), draws_needed(0.95), draws_needed(0.5)
    (9, 19, 1)
    """
    return math.ceil(1 / (1 - level) - 1 - SLACK)


def count_draws(groups: Sequence[str]) -> int:
    """Return how many draws there are."""
    return len(set(groups))


def check_level(level: float) -> float:
    """Return a level that is above 0 and below 1."""
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, but a number between 0 and 1 is needed. Use 0.9 for 90 %.")
    return level


def weights(groups: Sequence[str]) -> NDArray[np.float64]:
    """Return the weight of each case; they sum to K / (K + 1).

    >>> weights(["a", "a", "b"]).tolist() == [1 / 6, 1 / 6, 1 / 3]
    True
    """
    names, inverse, counts = np.unique(np.asarray(groups, dtype=object), return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = 1 / ((len(names) + 1) * counts[inverse])
    return found


def quantile(scores: ArrayLike, groups: Sequence[str], level: float) -> float:
    """Return what a new score exceeds with probability at most 1 - level; infinite where the draws are too few."""
    values = np.asarray(scores, np.float64)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights(groups)[order]) if len(values) else np.zeros(0)
    enough = np.flatnonzero(reached >= level - SLACK)
    return float(values[order][enough[0]]) if len(enough) else math.inf


def p_value(scores: ArrayLike, groups: Sequence[str], score: float) -> float:
    """Return how often a new score is at least this large, at most."""
    values = np.asarray(scores, np.float64)
    return float(weights(groups)[values >= score].sum() + 1 / (count_draws(groups) + 1))


def first_controlled(losses: ArrayLike, draws: int, share: float) -> int | None:
    """Return the first place of a grid whose expected loss is at most a share; None if there is none.

    Args:
        losses: the mean loss over earlier draws at each place, in [0, 1], not growing.
        draws: how many they were.
        share: the bound.
    """
    bound = (draws * np.asarray(losses, np.float64) + 1) / (draws + 1)
    kept = np.flatnonzero(bound <= share + SLACK)
    return int(kept[0]) if len(kept) else None


def mean_over_draws(losses: ArrayLike, groups: Sequence[str]) -> NDArray[np.float64]:
    """Return the mean over groups of the mean over their cases, along the first axis."""
    rows, own = np.asarray(losses, np.float64), weights(groups)
    total: NDArray[np.float64] = np.tensordot(own / own.sum(), rows, 1)
    return total
