"""How many predictions a calibrator changed, and whether for the better.

The rate is a share of all voxels that count. Harmful, beneficial and neutral flips are shares of the flipped voxels,
and not defined where none flipped.
"""

import math

from segcal.kernels.raw_tables import BENEFICIAL, HARMFUL, NEUTRAL
from segcal.statistics.case import Flips


def flip_rate(flips: Flips) -> float:
    """Return the share of voxels that flipped."""
    return float(flips.count.sum() / flips.voxels) if flips.voxels else math.nan


def harmful_flips(flips: Flips) -> float:
    """Return the share of flips from the true class to a wrong one."""
    return _share(flips, HARMFUL)


def beneficial_flips(flips: Flips) -> float:
    """Return the share of flips from a wrong class to the true one."""
    return _share(flips, BENEFICIAL)


def neutral_flips(flips: Flips) -> float:
    """Return the share of flips from one wrong class to another."""
    return _share(flips, NEUTRAL)


def _share(flips: Flips, kind: int) -> float:
    total = flips.count.sum()
    return float(flips.count[:, :, kind].sum() / total) if total else math.nan
