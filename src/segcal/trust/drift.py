r"""A sequential test of a stream of p-values: evidence that grows when cases become unusual, whenever that begins.

If cases keep coming from where the reference came from, their smoothed p-values (each among the n draws of the
reference and all earlier draws of the stream) are independent and uniform. Then a bet that pays :math:`e(p)` with mean
1 is fair, and so are products of bets. If the stream drifts from draw s on, its draws lie among the most unusual: the
p-value of draw t is mostly below

.. math:: c = \frac{t - s + 1 + j}{n + t + 1},

where j draws of the reference are as unusual as they are. The bet :math:`e(p) = 1 - \eta + \eta [p \le c] / c` is
made for several j and :math:`\eta`, with the capital :math:`1 / (t (t + 1))` put on start t, and the rest kept. By
Ville's inequality the chance that the evidence, the whole capital, ever reaches :math:`1 / \delta` is at most
:math:`\delta`, however long the stream. (Vovk, Nouretdinov and Gammerman, 2003; Volkhonskiy et al., 2017.)

Since when the stream has drifted is the start whose bets did best.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Shares of the reference that may be as unusual as a drifted draw, and shares of the capital that are bet.
OTHERS = (0.0, 0.1, 0.25)
STAKES = (0.5, 0.9)


class StreamEvidence(NamedTuple):
    """What a stream of p-values amounts to.

    Attributes:
        logs: the logarithm of the evidence after each p-value.
        reached: the number of the p-value at which it first reached the limit; None if it did not.
        since: the number of the p-value with which the drift began; None without one.
    """

    logs: list[float]
    reached: int | None
    since: int | None


def weigh(p_values: Sequence[float], reference: int, rate: float) -> StreamEvidence:
    """Return the evidence of a stream against that nothing has changed, and whether it is enough.

    Args:
        p_values: in the order of the stream.
        reference: how many draws the reference has.
        rate: the chance of a false alarm, ever.

    >>> weigh([0.9, 0.4, 0.6], 30, 0.01).reached, weigh([0.5] + [0.01] * 5, 30, 0.01)[1:]
    (None, (3, 1))
    """
    ways = [(other, stake) for other in OTHERS for stake in STAKES]
    others, stakes = (np.array(each) for each in zip(*ways, strict=True))
    bets = np.zeros((0, len(ways)))
    logs: list[float] = []
    reached = since = None
    for number, p in enumerate(p_values):
        start = number + 1
        first = np.full((1, len(ways)), -math.log(start * (start + 1) * len(ways)))
        bets = np.concatenate([bets, first])
        drifted = number - np.arange(start)[:, None] + 1  # by each start, this draw among them
        limit = np.minimum((drifted + others * reference) / (reference + number + 1), 1)
        bets = bets + np.log(1 - stakes + stakes * (p <= limit) / limit)
        logs.append(float(np.logaddexp(np.logaddexp.reduce(bets, axis=None), -math.log(start + 1))))
        if reached is None and logs[-1] >= -math.log(rate):
            reached, since = number, int(np.logaddexp.reduce(bets, axis=1).argmax())
    return StreamEvidence(logs, reached, since)
