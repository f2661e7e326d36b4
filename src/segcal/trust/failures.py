r"""How well cases can be ranked by how far they are to be trusted, without labels; and how that is judged with them.

The risk of a case is 1 - Dice, the mean over its structures that are there or were found. Ranked from the most trusted
down, the mean risk of the first k cases, averaged over k, is the area under the risk-coverage curve (AURC); what it is
above that of a ranking by the risk itself is the excess. A mask is bad if its Dice is below tau: AUROC is the chance
that a bad case is trusted less than a good one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segcal.summary import defined_mean
from segcal.trust.estimates import expected_dice
from segcal.trust.table import Floats, SumTable


def risk_of(table: SumTable, classes: Sequence[int]) -> Floats:
    """Return the risk of each labelled case; NaN where no structure is there and none was found."""
    absent = table.empty & (table.truth == 0)
    return 1 - defined_mean(np.where(absent, np.nan, table.dice)[:, list(classes)], axis=1)


def rankings(table: SumTable, classes: Sequence[int]) -> dict[str, Floats]:
    """Return, for each way to rank cases, one number per case; the lowest is trusted least.

    Ways that need members are left out where they are not known. A case without a mask has the number 0.
    """
    there = np.where(table.empty, np.nan, 1.0)[:, list(classes)]

    def mean(values: Floats) -> Floats:
        return np.nan_to_num(defined_mean(values[:, list(classes)] * there, axis=1))

    found = {
        "expected Dice": mean(table.expected_dice),
        "mean confidence in the mask": mean(table.precision),
        "mean confidence at the edge": mean(table.edge_confidence),
        "mean confidence": table.hit.sum(1) / table.voxels,
        "negative entropy": -table.entropy / table.voxels,
    }
    if not np.isnan(table.agreement).all():
        found["expected Dice and members"] = mean(expected_dice(table))
        found["agreement of members"] = mean(table.agreement)
    return found


def risk_area(trusted: Floats, risk: Floats) -> float:
    """Return the area under the risk-coverage curve.

    >>> risk_area(np.array([3.0, 1.0, 2.0]), np.array([0.0, 0.6, 0.3]))
    0.15
    """
    ordered = risk[np.argsort(-trusted, kind="stable")]
    return float((np.cumsum(ordered) / np.arange(1, len(risk) + 1)).mean())


def excess_area(trusted: Floats, risk: Floats) -> float:
    """Return how much of the area the best ranking would not have."""
    return risk_area(trusted, risk) - risk_area(-risk, risk)


def auroc(trusted: Floats, bad: NDArray[np.bool_]) -> float | None:
    """Return the chance that a bad case is trusted less than a good one, ties half; None without both kinds.

    >>> auroc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([True, True, False, False]))
    0.875
    """
    if bad.all() or not bad.any():
        return None
    gaps = trusted[~bad][:, None] - trusted[bad]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())
