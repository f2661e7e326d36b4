r"""Class proportions around each voxel: the priors of nacl and the targets of svls.

With window weights :math:`w_j` and one-hot labels :math:`y`, :math:`\tau_i = \sum_j w_j y_{i+j} / \sum_j w_j`, where

- mean: :math:`w = 1` in a cube of odd width, the voxel itself included;
- gaussian: the filter of svls. The neighbours have Gaussian weights that sum to one, and the voxel itself has weight
  one, whatever sigma: half the result is its own label.

Ignored neighbours have weight zero and the rest is divided by what is left; an ignored voxel has proportions zero.
Beyond the border stands a copy of the nearest voxel, unless another rule is asked for.

Cost: the filters are separable, and one class is filtered at a time, as bytes for the mean, and handed out before the
next: no one-hot copy of the labels is made. The neighbours of the Gaussian are summed without their centre, not by
subtracting it afterwards, so that a small sigma loses no digits: with :math:`a = e^{-1/2\sigma^2}` and tap
:math:`a t_k` at distance k, filtering along one axis after the other keeps the full sum :math:`F` and the sum without
centre :math:`N / a`:

.. math:: S = \sum_{k \ge 1} t_k (F_{-k} + F_{+k}), \qquad F \leftarrow F + a S, \qquad N / a \leftarrow N / a + S .
"""

import math
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segcal.errors import InputError
from segcal.types import IGNORED, Labels

Borders: TypeAlias = Literal["replicate", "class_0", "nothing"]

# A place beyond the border that is of no class but counts in the sum of weights.
NOTHING = -2


def mean_prior(
    labels: Labels, num_classes: int, kernel_size: int, dtype: torch.dtype, borders: Borders = "replicate"
) -> Iterator[Tensor]:
    """Yield, class by class, the proportions ``(batch, *space)`` in a cube around each voxel."""
    _check_space(labels, kernel_size)
    padded = _pad(labels, kernel_size // 2, borders)
    scale: Tensor | float = 1 / kernel_size ** (labels.ndim - 1)
    if _may_ignore(labels):
        counted = _count(padded != IGNORED, kernel_size)
        scale = torch.where(labels == IGNORED, 0.0, 1 / counted.to(dtype).clamp(min=1))
    for number in range(num_classes):
        yield _count(padded == number, kernel_size).to(dtype).mul_(scale)


def gaussian_prior(
    labels: Labels, num_classes: int, kernel_size: int, sigma: float, dtype: torch.dtype
) -> Iterator[Tensor]:
    """Yield, class by class, half the own label plus half the Gaussian mean of the neighbours, ``(batch, *space)``."""
    _check_space(labels, kernel_size)
    padded = _pad(labels, kernel_size // 2, "replicate")
    window = torch.ones((1, *(kernel_size,) * (labels.ndim - 1)), dtype=torch.float64)
    total = float(_around(window, kernel_size, sigma))
    scale: Tensor | float = 0.5
    if _may_ignore(labels):
        counted = 1 + _around((padded != IGNORED).to(dtype), kernel_size, sigma) / total
        scale = torch.where(labels == IGNORED, 0.0, 1 / counted)
    for number in range(num_classes):
        around = _around((padded == number).to(dtype), kernel_size, sigma)
        yield around.div_(total).add_(labels == number).mul_(scale)


def plain_gaussian_prior(labels: Labels, num_classes: int, sigma: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield, class by class, one-hot labels under a Gaussian, integrated over voxels and cut at four sigma."""
    radius = int(max(4 * sigma, 0.5) + 0.5)
    edges = (torch.arange(-radius, radius + 2, dtype=torch.float64) - 0.5) / (math.sqrt(2) * sigma)
    taps = (0.5 * torch.erf(edges).diff()).tolist()
    padded = _pad(labels, radius, "nothing")
    lost = _filter((padded == IGNORED).to(dtype), taps) / sum(taps) ** (labels.ndim - 1)
    scale = torch.where(labels == IGNORED, 0.0, 1 / (1 - lost).clamp(min=torch.finfo(dtype).eps))
    for number in range(num_classes):
        yield _filter((padded == number).to(dtype), taps) * scale


def stacked(shares: Iterable[Tensor], labels: Labels, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Return the proportions of all classes, ``(batch, classes, *space)``."""
    found = torch.empty((len(labels), num_classes, *labels.shape[1:]), dtype=dtype, device=labels.device)
    for number, share in enumerate(shares):
        found[:, number] = share
    return found


def _check_space(labels: Labels, kernel_size: int) -> None:
    space = tuple(labels.shape[1:])
    if not space or min(space) < kernel_size:
        raise InputError(
            f"labels has space {space}, but a neighbourhood with kernel_size = {kernel_size} needs at least that many "
            "voxels along every axis. Use larger crops or a smaller kernel_size; single slices are pictures without "
            "that axis."
        )


def _pad(labels: Labels, radius: int, borders: Borders) -> Tensor:
    # Two bytes per voxel are enough for the comparisons that follow.
    padded = labels.to(torch.int16)
    if borders != "replicate":
        return functional.pad(padded, [radius] * 2 * (labels.ndim - 1), value=0 if borders == "class_0" else NOTHING)
    for axis in range(1, labels.ndim):
        edges = padded.narrow(axis, 0, 1), padded.narrow(axis, padded.shape[axis] - 1, 1)
        padded = torch.cat([edges[0]] * radius + [padded] + [edges[1]] * radius, dim=axis)
    return padded


def _may_ignore(labels: Labels) -> bool:
    """Return whether a voxel may be ignored; a GPU is not asked, which would have to be waited for."""
    return labels.is_cuda or torch.compiler.is_compiling() or bool(labels.amin() == IGNORED)


def _count(mask: Tensor, size: int) -> Tensor:
    """Return how many of each window are true, in the smallest type that holds the number."""
    count = mask.view(torch.uint8) if size ** (mask.ndim - 1) < 256 else mask.to(torch.int32)
    for axis in range(1, mask.ndim):
        length = mask.shape[axis] - size + 1
        total = count.narrow(axis, 0, length) + count.narrow(axis, 1, length)
        for start in range(2, size):
            total += count.narrow(axis, start, length)
        count = total
    return count


def _around(values: Tensor, size: int, sigma: float) -> Tensor:
    """Return the Gaussian sum over each window without its centre, in units of the nearest neighbour's weight."""
    radius, exponent = size // 2, 0.5 / sigma / sigma
    factor = math.exp(-exponent)
    taps = [1.0] + [math.exp(-exponent * (distance**2 - 1)) for distance in range(2, radius + 1)]
    full, around = values, torch.zeros_like(values)
    for axis in range(1, values.ndim):
        length = values.shape[axis] - 2 * radius
        ring = torch.zeros_like(full.narrow(axis, 0, length))
        for distance, tap in enumerate(taps, start=1):
            ring.add_(full.narrow(axis, radius - distance, length), alpha=tap)
            ring.add_(full.narrow(axis, radius + distance, length), alpha=tap)
        full = full.narrow(axis, radius, length).add(ring, alpha=factor)
        around = around.narrow(axis, radius, length) + ring
    return around


def _filter(values: Tensor, taps: list[float]) -> Tensor:
    for axis in range(1, values.ndim):
        length = values.shape[axis] - len(taps) + 1
        total = values.narrow(axis, 0, length) * taps[0]
        for start, tap in enumerate(taps[1:], start=1):
            total.add_(values.narrow(axis, start, length), alpha=tap)
        values = total
    return values
