r"""One pass over the voxels of a case: everything that the statistics need, as tables of counts and sums.

For every voxel with a label :math:`y \ge 0`, from its scores :math:`z` (logits, log-probabilities or a calibrator's
scores; the softmax is taken here):

- confidence :math:`\max_c q_c`, counted in bins (lo, hi] with edges :math:`k/B`, for several B at once. Bands (a code
  of the caller for each voxel), zones and right or wrong predictions are counted apart;
- each :math:`q_c` in bins of its own, apart by zone;
- the confusion of truth and prediction, and the voxels whose prediction differs from a reference prediction;
- uncertainty :math:`1 - \max_c q_c` in bins that are even in its logarithm, from which rankings are read;
- sums of :math:`-\log q_y`, of :math:`\sum_c (q_c - [c = y])^2` and of the entropy, and moments of the free energy.

A zone is: 0, class 0 in truth and prediction; 1, class 0 in truth only; 2, another class in truth.

The prediction is the class with the largest score, the lowest index of equal ones. With a reference prediction the
reference stays where it is one of the largest: a prediction changes only where another class is *strictly* above.

There are three implementations: :func:`reference_count` says it in plain tensor operations and serves every device.
`reliability_numba` is the fast one for the CPU, `reliability_triton` for CUDA devices and types up to float32. Half
precision is computed in float32, other types in their own.
"""

import numpy as np
import torch
from torch import Tensor

from segcal.checks import check_finite
from segcal.kernels import reliability_numba
from segcal.kernels.apply import has_triton
from segcal.kernels.raw_tables import (
    BENEFICIAL,
    HARMFUL,
    NEUTRAL,
    UNCERTAINTY_BASE,
    UNCERTAINTY_BINS,
    ZONES,
    Layout,
    Map,
    RawTables,
    add_tables,
)
from segcal.numerics import compute_dtype, winner

CHUNK = 1 << 18


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
    if is_fused(scores):
        from segcal.kernels import reliability_triton

        return reliability_triton.count_voxels(scores, labels, layout, bands, reference, prediction)
    return reference_count(scores, labels, layout, bands, reference, prediction)


def count_images(scores: Tensor, labels: Tensor, layout: Layout) -> list[RawTables]:
    """Count each image of ``(images, classes, *space)``; on a CUDA device many at once, with the same tables."""
    if not is_fused(scores):
        return [count_voxels(*image, layout) for image in zip(scores, labels, strict=True)]
    from segcal.kernels import reliability_triton

    return reliability_triton.count_images(scores, labels, layout)


def is_fused(scores: Tensor) -> bool:
    """Return whether the kernel for CUDA devices counts these scores."""
    return scores.is_cuda and scores.dtype != torch.float64 and has_triton()


def reference_count(
    scores: Tensor, labels: Tensor, layout: Layout, bands: Map = None, reference: Map = None, prediction: Map = None
) -> RawTables:
    """Count one case in plain tensor operations, in chunks, so that memory does not grow with it."""
    voxels = labels.numel()
    flat, flat_labels = scores.detach().reshape(layout.num_classes, voxels), labels.reshape(-1)
    total = RawTables.zeros(layout)
    for begin in range(0, voxels, CHUNK):
        part = slice(begin, min(begin + CHUNK, voxels))
        z = flat[:, part].to(compute_dtype(flat.dtype))
        check_finite(z, "scores")
        old = None if reference is None else torch.from_numpy(reference[part]).to(z.device, torch.int64)
        new = _predict(z, old)
        if prediction is not None:
            prediction[part] = new.cpu().numpy()
        y = flat_labels[part].to(z.device)
        valid = y >= 0
        code = torch.zeros_like(y) if bands is None else torch.from_numpy(bands[part]).to(z.device, torch.int64)
        tables = _count(z[:, valid], y[valid], code[valid], new[valid], layout)
        tables.ignored[0] = int((~valid).sum())
        if old is not None:
            tables.flips[:] = _flips(y[valid], old[valid], new[valid], layout.num_classes)
        total = add_tables([total, tables])
    return total


def _predict(z: Tensor, reference: Tensor | None) -> Tensor:
    new = winner(z, axis=0)
    if reference is None:
        return new
    return torch.where(z.gather(0, reference[None])[0] == z.amax(0), reference, new)


def _count(z: Tensor, y: Tensor, band: Tensor, new: Tensor, layout: Layout) -> RawTables:
    tables = RawTables.zeros(layout)
    if y.numel() == 0:
        return tables
    top = z.amax(0)
    gap = z - top
    e = gap.exp()
    rest = e.scatter(0, new[None], 0.0).sum(0).double()
    log, q = torch.log1p(rest), e.double() / (1 + rest)
    confidence = 1 / (1 + rest)
    right = (y == new).long()
    zone = torch.where(y > 0, 2, (new > 0).long())

    shape = tables.cells.shape
    first = 0
    for bins in layout.bins:
        cell = ((band * ZONES + zone) * 2 + right) * shape[-1] + first + _find_bins(confidence, bins)
        tables.cells[...] += _bincount(cell, shape)
        tables.confidence[...] += _bincount(cell, shape, confidence)
        first += bins
    if layout.class_bins:
        _count_classes(q, y, zone, layout.class_bins, tables)
    tables.confusion[:] = _bincount(y * layout.num_classes + new, tables.confusion.shape)
    uncertainty = (rest * confidence).float().view(torch.int32).long()
    uncertainty = ((uncertainty >> 20) - UNCERTAINTY_BASE).clamp(0, UNCERTAINTY_BINS - 1)
    tables.uncertainty[:] = _bincount(uncertainty * 2 + right, tables.uncertainty.shape)

    own = gap.gather(0, y[None])[0].double()
    brier = q.square().sum(0) - 2 * q.gather(0, y[None])[0] + 1
    entropy = log - (q * gap.double()).sum(0)
    energy = top.double() + log
    tables.sums[:] = [float(value.sum()) for value in (log - own, brier, entropy)]
    mean = float(energy.mean())
    tables.energy[:] = [mean, float((energy - mean).square().sum())]
    tables.offset[0] = float(energy.abs().max())
    return tables


def _count_classes(q: Tensor, y: Tensor, zone: Tensor, bins: int, tables: RawTables) -> None:
    shape = tables.class_count.shape
    for c in range(shape[1]):
        cell = (zone * shape[1] + c) * bins + _find_bins(q[c], bins)
        tables.class_count[...] += _bincount(cell, shape)
        tables.class_hits[...] += _bincount(cell[y == c], shape)
        tables.class_prob[...] += _bincount(cell, shape, q[c])


def _flips(y: Tensor, old: Tensor, new: Tensor, num_classes: int) -> np.ndarray:
    kind = torch.where(old == y, HARMFUL, torch.where(new == y, BENEFICIAL, NEUTRAL))
    cell = ((old * num_classes + new) * 3 + kind)[old != new]
    return _bincount(cell, (num_classes, num_classes, 3))


def _find_bins(values: Tensor, bins: int) -> Tensor:
    """Return the bin (lo, hi] of each value among `bins` with float64 edges k / bins."""
    edges = torch.arange(bins + 1, dtype=torch.float64, device=values.device) / bins
    return (torch.searchsorted(edges, values.double(), side="left") - 1).clamp(0, bins - 1)


def _bincount(cell: Tensor, shape: tuple[int, ...], weights: Tensor | None = None) -> np.ndarray:
    counted = torch.bincount(cell, weights=weights, minlength=int(np.prod(shape)))
    return counted.cpu().numpy().reshape(shape)
