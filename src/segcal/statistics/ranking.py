r"""How errors are spread when voxels are ranked by confidence.

Voxels are counted in bins of doubt :math:`1 - \max_c q_c`, eight to an octave from :math:`2^{-40}` to 1. Most voxels
of a segmentation are nearly certain; bins that are even in the logarithm tell 1 - 1e-6 from 1 - 1e-9, where even
bins of confidence would put both in one.
"""

from dataclasses import dataclass

import numpy as np

from segcal.statistics.additive import Table


@dataclass(frozen=True)
class Ranking(Table):
    """Voxels by doubt, from the least to the most.

    Attributes:
        count: voxels in each bin, int64.
        wrong: those whose prediction is wrong, int64.
    """

    count: np.ndarray
    wrong: np.ndarray
