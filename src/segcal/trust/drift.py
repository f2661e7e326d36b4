r"""A sequential test of a stream of p-values: evidence that grows when cases become unusual, whenever that begins.

Smoothed p-values of cases are taken among the n groups of the reference and all earlier groups of the stream. If cases
keep coming from the source of the reference, they are independent and uniform. Then a bet that pays :math:`e(p)` with
mean 1 is fair, and so are products of bets. If the stream drifts from group s on, its groups lie among the most
unusual: the p-value of group t is mostly below

.. math:: c = \frac{t - s + 1 + j}{n + t + 1},

where j groups of the reference are as unusual as they are. The bet :math:`e(p) = 1 - \eta + \eta [p \le c] / c` is
made for several j and :math:`\eta`, with the capital :math:`1 / (t (t + 1))` put on start t, and the rest kept. By
Ville's inequality the chance that the whole capital ever reaches :math:`1 / \delta` is at most :math:`\delta`, however
long the stream. (Vovk, Nouretdinov and Gammerman, 2003; Volkhonskiy et al., 2017.)

A group has several p-values: how atypical it is as a whole, how high each of its numbers lies, and how low. Each kind
is a stream of its own with a share :math:`w_k` of the capital. Half of it is for leading kinds (the first; of a watch
also those of :mod:`segcal.trust.alarms`), in equal parts for each tier. The rest is in equal parts for the others.
P-values of different kinds depend on each other in unknown ways, so their capitals are not added. The evidence is the
largest :math:`w_k M_k`, and the chance that any of them ever reaches :math:`1 / \delta` is at most :math:`\sum_k w_k
\delta = \delta`. Starts whose capital is below :data:`FORGOTTEN` are given up, which costs nothing but time.

Since when the stream has drifted is the start whose bets did best.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Shares of the reference that may be as unusual as a drifted group, and shares of the capital that are bet.
OTHERS = (0.0, 0.1, 0.25)
STAKES = (0.5, 0.9)
# A logarithm.
FORGOTTEN = -45.0


class StreamEvidence(NamedTuple):
    """The evidence of a stream of p-values.

    Attributes:
        logs: the logarithm of the evidence after each p-value.
        reached: the number of the p-value at which it first reached the limit; None if it did not.
        since: the number of the p-value with which the drift began; None without one.
        kind: which of the p-values of a group it was that reached the limit; None without one.
        each: of every kind that reached the limit by itself, now or later, the p-value with which its drift began.
    """

    logs: list[float]
    reached: int | None
    since: int | None
    kind: int | None
    each: dict[int, int]


def weigh(
    p_values: ArrayLike, reference: int, rate: float, leading: Sequence[Sequence[int]] = ((0,),)
) -> StreamEvidence:
    """Return the evidence of a stream against that nothing has changed, and whether it is enough.

    Args:
        p_values: in the order of the stream; one for each group, or a row of several kinds of them.
        reference: how many groups the reference has.
        rate: the chance of a false alarm, ever.
        leading: tiers of kinds that divide half of the capital, or all where there are no others.

    >>> weigh([0.9, 0.4, 0.6], 30, 0.01).reached, weigh([0.5] + [0.01] * 5, 30, 0.01)[1:]
    (None, (3, 1, 0, {0: 1}))
    """
    rows = np.asarray(p_values, float)
    rows = rows[:, None] if rows.ndim == 1 else rows
    kinds = rows.shape[1]
    tiers = [list(tier) for tier in leading if len(tier)]
    others = kinds - sum(map(len, tiers))
    shares = np.full(kinds, 0.5 / max(others, 1))
    for tier in tiers:
        shares[tier] = (0.5 if others else 1.0) / len(tiers) / len(tier)
    alike, stakes = (np.array(each) for each in zip(*((o, s) for o in OTHERS for s in STAKES), strict=True))
    bets, starts = np.zeros((0, kinds, len(stakes))), np.zeros(0, int)
    logs: list[float] = []
    reached = since = kind = None
    each: dict[int, int] = {}
    for number, row in enumerate(rows):
        first = -math.log((number + 1) * (number + 2) * len(stakes))
        bets = np.concatenate([bets, np.full((1, kinds, len(stakes)), first)])
        starts = np.append(starts, number)
        drifted = number - starts[:, None, None] + 1  # by each start, this group among them
        limit = np.minimum((drifted + alike * reference) / (reference + number + 1), 1)
        bets += np.where(row[:, None] <= limit, np.log(1 - stakes + stakes / limit), np.log(1 - stakes))
        capital = np.logaddexp(_log_sum(bets, (0, 2)), -math.log(number + 2)) + np.log(shares)
        logs.append(float(capital.max()))
        for one in (int(one) for one in np.flatnonzero(capital >= -math.log(rate)) if one not in each):
            each[one] = int(starts[_log_sum(bets[:, one], (1,)).argmax()])
        if reached is None and each:
            reached, kind = number, int(capital.argmax())
            since = each[kind]
        kept = (bets > FORGOTTEN).any((1, 2))
        bets, starts = bets[kept], starts[kept]
    return StreamEvidence(logs, reached, since, kind, each)


def _log_sum(logs: NDArray[np.float64], axes: tuple[int, ...]) -> NDArray[np.float64]:
    most = logs.max(axes, keepdims=True)
    found: NDArray[np.float64] = np.log(np.exp(logs - most).sum(axes)) + most.squeeze(axes)
    return found
