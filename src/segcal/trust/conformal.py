r"""Conformal inference over groups: what earlier groups say of the next one, whatever their distribution.

A case that belongs to no group (patient, site, video) is a group of its own. Of K earlier groups and a new one that are
exchangeable, each is the atypical one with the same chance :math:`1 / (K + 1)`. A group of several cases shares its
chance among them (Lee, Barber and Willett, 2023, "hierarchical conformal prediction"). With one case per group this is
split conformal prediction. Case i in a group of n cases has the weight :math:`w_i = 1 / ((K + 1) n_{g(i)})`. So for a
case that is drawn at random from a new group:

- its score is at most the smallest s with :math:`\sum_i w_i [s_i \le s] \ge L`, with probability at least L
  (:func:`quantile`). With one case a group it is the :math:`\lceil (K + 1) L \rceil`-th smallest;
- :math:`p = \sum_i w_i [s_i \ge s] + 1 / (K + 1)` is at most a with probability at most a (:func:`p_value`);
- for losses in [0, 1] that do not grow along a grid, the first point of the grid with
  :math:`\frac{K}{K + 1} \bar\ell + \frac{1}{K + 1} \le a` has an expected loss of at most a (:func:`first_controlled`;
  Angelopoulos et al., 2024, "conformal risk control"). The mean is over groups of the mean over their cases.

All three are averages over earlier and new groups. Every group counts the same, whatever its number of cases:
it is the mean over groups of the share of their cases. They are no promises for one case, one reference, or the share
of all cases together. The last is another number where large groups are harder than small ones.

**Scores of calibrators that were fitted without the group** (CV+; Barber et al., 2021). K groups are divided into folds
of m, and scores of a fold are those of the calibrator that was fitted to the other folds. The new case has one score
for each of these calibrators, and is compared with the scores of a fold by that fold's calibrator. Add m groups, the
new one among them, as one more fold. For cases i, j of two folds let :math:`A_{ij} = 1` if i has the larger score by
the calibrator that was fitted without both folds. Case i is *atypical* if what it exceeds has a weight of at least
:math:`L (P - P_k + 1)`. Here P groups in all and :math:`P_k` in its own fold k have such a case (a mask of the
structure, say). With the weight :math:`s_k \le P_k` of atypical cases in fold k, s of all, and :math:`A_{ij} + A_{ji}
\le 1`,

.. math:: \sum_k s_k L (P - P_k + 1) \le \sum_{i\,atypical} \sum_j w_i w_j A_{ij} \le
          \sum_k s_k \Big(P - P_k - \frac{s - s_k}{2}\Big),

so that with a = 1 - L and weights that sum to 1 in a group :math:`s / P \le 2 a + ((1 - 2 a) m - 2 (1 - a)) / P`. All
groups are exchangeable, so this bounds the chance that the new case is atypical, as it is where a CV+ interval misses
(:func:`proved_level`). It needs folds of equal size, drawn regardless of the data, and fits that treat all groups
alike. There is no such proof where the kind or the strength of the calibrator was chosen on the same cases.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segcal.errors import InputError

# Sums of weights such as 1 / 11 + ... + 1 / 11 are off by rounding.
SLACK = 1e-9


def draws_needed(level: float) -> int:
    """Return the least number of groups that can support a level: 1 / (1 - level) - 1.

    >>> draws_needed(0.9), draws_needed(0.95), draws_needed(0.5)
    (9, 19, 1)
    """
    return math.ceil(1 / (1 - level) - 1 - SLACK)


def proved_level(level: float, draws: int, size: int) -> float:
    """Return the coverage that is proved for CV+ at a level, with folds of `size` of so many groups.

    >>> proved_level(0.9, 20, 2), round(proved_level(0.9, 20, 4), 3)
    (0.8, 0.733)
    """
    share = 1 - level
    excess = max(0.0, (1 - 2 * share) * size - 2 * level) / (draws + 1)
    return round(max(0.0, 1 - 2 * share - excess), 12)


def count_draws(groups: Sequence[str]) -> int:
    """Return how many groups there are."""
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
    """Return what a new score exceeds with probability at most 1 - level; infinite where the groups are too few."""
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
    """Return the first point of a grid whose expected loss is at most a share; None if there is none.

    Args:
        losses: the mean loss over earlier groups at each threshold, in [0, 1], not growing.
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
