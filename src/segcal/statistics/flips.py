"""Voxels whose predicted class a calibrator changed.

A voxel flips if another class is *strictly* above the old winner in the scores. Harmful flips leave the true class,
beneficial ones reach it, neutral ones go from one wrong class to another.
"""

from dataclasses import dataclass

import numpy as np

from segcal.statistics.additive import Table


@dataclass(frozen=True)
class Flips(Table):
    """Flipped voxels.

    Attributes:
        count: ``(from, to, harmful/beneficial/neutral)`` int64.
        voxels: how many voxels were compared.
    """

    count: np.ndarray
    voxels: int
