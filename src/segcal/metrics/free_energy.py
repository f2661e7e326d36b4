r"""Spread of the free energy of the input logits over the voxels of a case: :math:`\mathrm{Std}_v\, F(z(v))`.

The softmax does not see the free energy, but a calibrator that is not translation-invariant does.
"""

import math

from segcal.statistics.free_energy import FreeEnergy


def free_energy_std(moments: FreeEnergy) -> float:
    """Return the (population) standard deviation."""
    return math.sqrt(moments.deviation / moments.voxels) if moments.voxels else math.nan
