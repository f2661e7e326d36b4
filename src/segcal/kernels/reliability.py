r"""One pass over the voxels of a case: everything that the statistics need, as tables of counts and sums.

For every voxel with a label :math:`y \ge 0`, from its scores :math:`z` (logits, log-probabilities or a calibrator's
scores; the softmax is taken here):

- confidence :math:`\max_c q_c`, counted in bins (lo, hi] with edges :math:`k/B`, for several B at once, and apart by
  band (a code the caller gives each voxel), by zone and by whether the prediction is right;
- each :math:`q_c` in bins of its own, apart by zone;
- the confusion of truth and prediction, and the voxels whose prediction differs from a reference prediction;
- doubt :math:`1 - \max_c q_c` in bins that are even in its logarithm, from which rankings are read;
- sums of :math:`-\log q_y`, of :math:`\sum_c (q_c - [c = y])^2` and of the entropy, and moments of the free energy.

A zone is: 0, class 0 in truth and prediction; 1, class 0 in truth only; 2, another class in truth.

The prediction is the class with the largest score, the lowest index of equal ones. With a reference prediction the
reference stays where it is one of the largest: a prediction changes only where another class is *strictly* above.

There are three implementations: `reliability_torch` says it in plain tensor operations and serves every device;
`reliability_numba` is the fast one for the CPU, `reliability_triton` for CUDA devices and types up to float32. Half
precision is computed in float32, other types in their own.
"""

import torch
from torch import Tensor

from segcal.kernels import reliability_numba, reliability_torch
from segcal.kernels.apply import has_triton
from segcal.kernels.raw_tables import Layout, Map, RawTables


def count_voxels(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case with the implementation that serves its device.

    Args:
        scores: ``(classes, *space)``, finite, of any floating type.
        labels: ``(*space)`` int64; negative labels do not count.
        layout: the sizes of the tables.
        bands: ``(voxels,)`` uint8, the band code of each voxel; all 0 if not given.
        reference: ``(voxels,)`` int16, the prediction to compare with.
        prediction: ``(voxels,)`` int16, filled with the prediction.
    """
    if not scores.is_cuda:
        return reliability_numba.count_voxels(scores, labels, layout, bands, reference, prediction)
    if scores.dtype != torch.float64 and has_triton():
        from segcal.kernels import reliability_triton

        return reliability_triton.count_voxels(scores, labels, layout, bands, reference, prediction)
    return reliability_torch.count_voxels(scores, labels, layout, bands, reference, prediction)
