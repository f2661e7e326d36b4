"""Which class was predicted where which class is true."""

from dataclasses import dataclass

import numpy as np

from segcal.statistics.additive import Table


@dataclass(frozen=True)
class Confusion(Table):
    """Voxels by true and predicted class.

    Attributes:
        count: ``(truth, prediction)`` int64.
        ignored: voxels that did not count.
    """

    count: np.ndarray
    ignored: int
