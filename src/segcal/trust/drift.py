r"""A sequential test of a stream of p-values: evidence that grows when cases become unusual, whenever that begins.

If cases keep coming from where the reference came from, their smoothed p-values (each among the reference and all
earlier cases of the stream) are independent and uniform. Then for every power :math:`\epsilon` and every start t

.. math:: \prod_{i=t}^{n} \epsilon \, p_i^{\epsilon - 1}

is a bet with fair odds. The evidence is the mean of these bets over powers, with the capital :math:`1 / (t (t + 1))`
put on start t, and what is not bet yet kept. By Ville's inequality the chance that it ever reaches :math:`1 / \delta`
is at most :math:`\delta`, however long the stream. (Vovk, Nouretdinov and Gammerman, 2003; Volkhonskiy et al., 2017.)

Since when the stream has drifted is the start whose bet at the middle power did best.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

POWERS = np.linspace(0.1, 0.9, 9)


class Evidence(NamedTuple):
    """What a stream of p-values amounts to.

    Attributes:
        logs: the logarithm of the evidence after each p-value.
        reached: the number of the p-value at which it first reached the limit; None if it did not.
        since: the number of the p-value with which the drift began; None without one.
    """

    logs: list[float]
    reached: int | None
    since: int | None


def weigh(p_values: Sequence[float], rate: float) -> Evidence:
    """Return the evidence of a stream against that nothing has changed, and whether it is enough.

    Args:
        p_values: in the order of the stream, above 0.
        rate: the chance of a false alarm, ever.

    >>> weigh([0.9, 0.4, 0.6], 0.01).reached, weigh([0.5] + [0.01] * 5, 0.01)[1:]
    (None, (4, 1))
    """
    bets = np.full(len(POWERS), -math.inf)
    best, began = 0.0, 0
    logs: list[float] = []
    reached = since = None
    for number, p in enumerate(p_values):
        odds = np.log(POWERS) + (POWERS - 1) * math.log(p)
        start = number + 1
        bets = np.logaddexp(bets, -math.log(start * (start + 1))) + odds
        logs.append(float(np.logaddexp(np.logaddexp.reduce(bets) - math.log(len(POWERS)), -math.log(start + 1))))
        best, began = (best, began) if best > 0 else (0.0, number)
        best += float(odds[len(POWERS) // 2])
        if reached is None and logs[-1] >= -math.log(rate):
            reached, since = number, began
    return Evidence(logs, reached, since)
