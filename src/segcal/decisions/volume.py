r"""The mask that is as large as the structure is expected to be.

Calibrated probabilities say how large a structure is on average, :math:`\mu = \sum_v p_v` voxels. Of the masks
:math:`\{p \ge t\}`, the empty one among them, that of the size nearest to :math:`\mu` is taken, of two the smaller.
Such volumes are unbiased where each case is calibrated (Popordanoska et al., MICCAI 2021, for sums of p), other than
those of masks at 0.5.
"""

import numpy as np

from segcal.decisions.base import Ranked, Rule


class Volume(Rule):
    """The threshold at which the size of the mask is the sum of the probabilities."""

    name = "volume"
    about = "the mask as large as its structure is expected to be"
    ranks = True

    def of_case(self, ranked: Ranked) -> float:
        """Return the threshold of the mask whose size is nearest to the expected one."""
        return ranked.threshold(int(ranked.sizes[np.argmin(np.abs(ranked.sizes - ranked.total))]))
