r"""The mask with the highest expected Dice.

Let voxels be independent with the probabilities p. For a mask of k voxels, whose truths sum to A, and B outside of it,

.. math:: E[\mathrm{Dice}] = E\left[\frac{2 A}{k + A + B}\right], \qquad
          E[\mathrm{Dice}] = \prod_v (1 - p_v) \;\text{ of the empty mask.}

Of all masks the best one holds the most probable voxels (Dai and Li, JMLR 2023, RankSEG), so only k is looked for.

**Exact** (:func:`exact_curve`), for sorted p in :math:`O(n^2)`: with the distribution :math:`P_k` of A, which is
Poisson-binomial and grows by one voxel at a time, and :math:`s_k(\alpha) = E[1 / (\alpha + B)]`, which shrinks by one,

.. math:: E_k = \sum_{a=1}^{k} 2 a P_k(a) s_k(k + a), \quad
          s_{k-1}(\alpha) = p_k s_k(\alpha + 1) + (1 - p_k) s_k(\alpha), \quad s_n(\alpha) = 1 / \alpha .

**Large images.** Let :math:`\mu = \sum p`, :math:`\sigma^2 = \sum p (1 - p)` and :math:`h = \sum_{mask} p`. Then

.. math:: \left| E[\mathrm{Dice}] - \frac{2 h}{k + \mu} \right| \le \frac{2 \sigma^2}{(k + \mu)^2}, \qquad k \ge 1 .

*Proof.* :math:`E = \sum_{i \in mask} 2 p_i E[1 / X_i]`, where :math:`X_i` is k + 1 and the truths of all other voxels,
with mean :math:`c_i = k + 1 + \mu - p_i \ge k + \mu`. As :math:`1/x = 1/c - (x - c)/c^2 + (x - c)^2/(c^2 x)` and
:math:`X_i \ge k + 1`, E lies between :math:`L = \sum 2 p_i / c_i` and
:math:`L + 2 h \sigma^2 / ((k + \mu)^2 (k + 1))`, and :math:`h \le k`. The quotient lies above L too, by
:math:`\sum 2 p_i (1 - p_i) / ((k + \mu) c_i) \le 2 \sigma^2 / (k + \mu)^2`. The larger of the two gaps is the bound.

A structure of a few voxels in a large image has a wide bound. There the :data:`EXACT` most probable voxels are taken
exactly, and the number N of truths among all others as its mean :math:`\lambda`. In the same way, with :math:`2 A \le
k + A + B`, this is off by at most :math:`\mathrm{Var}(N) / (k + 1 + \lambda)^2`, and others have little variance.

Truths of neighbours are not independent, least of all where there may be no structure. The chance of that is far from
the product of 1 - p. So a structure that the preserved mask does not have stays away, as in RankSEG. What is maximised
is the expected Dice for who knows p alone; ``docs/decide.md`` has what that is worth on real cases.
"""

import math

import numpy as np

from segcal.decisions.base import Floats, Ranked

# So many voxels are taken exactly, if the mask has at most half of them.
EXACT = 1024


def best_dice(ranked: Ranked) -> float:
    """Return the threshold of the mask with the highest expected Dice."""
    if not ranked.present:
        return math.inf
    none, sums = math.exp(ranked.log_none), np.cumsum(ranked.probs)
    curve = np.append(none, 2 * sums / (np.arange(1, len(sums) + 1) + ranked.total))
    if len(sums) <= EXACT or 2 * np.argmax(curve) <= EXACT:
        top = ranked.probs[:EXACT]
        exact = exact_curve(top, max(ranked.total - float(top.sum()), 0.0))
        curve = np.concatenate([[none], exact[1:], np.zeros(len(sums) - len(top))])
    return ranked.threshold(int(ranked.sizes[np.argmax(curve[ranked.sizes])]))


def dice_bound(voxels: float, total: float, spread: float) -> float:
    """Return how far 2 h / (k + mu) may be from the expected Dice of a mask. A Dice is never off by more than 1."""
    return min(1.0, 2 * spread / (voxels + total) ** 2) if voxels + total else 0.0


def exact_curve(probs: Floats, rest: float = 0.0) -> Floats:
    """Return the expected Dice of the masks of the first 0, 1, ..., n voxels, for descending independent probabilities.

    `rest`: the number of truths elsewhere, for masks that are not empty.

    >>> exact_curve(np.array([0.5])).tolist()  # right in half of all cases, whatever is decided
    [0.5, 0.5]
    """
    n = len(probs)
    inside = [np.ones(1)]  # the distribution of the sum of the first k
    for p in probs:
        inside.append(np.append(inside[-1] * (1 - p), 0.0) + np.append(0.0, inside[-1] * p))
    found, outside = np.zeros(n + 1), 1 / (np.arange(1, 2 * n + 1) + rest)
    for k in range(n, 0, -1):
        found[k] = 2 * (np.arange(1, k + 1) * inside[k][1:]) @ outside[k : 2 * k]  # of k + 1, ..., 2 k
        outside = probs[k - 1] * outside[1:] + (1 - probs[k - 1]) * outside[:-1]
    found[0] = inside[n][0]
    return found
