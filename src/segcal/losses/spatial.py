r"""Losses that see the labels around a voxel: ``svls``, ``nacl``.

Spatially varying label smoothing (``svls``):

.. math:: L_i = -\sum_c \tilde y_{ic} \log p_{ic}, \qquad \tilde y_i = \tfrac12 y_i + \tfrac12 \tau_i

with :math:`\tau_i` the Gaussian mean of the neighbours' one-hot labels. Labels stay hard inside regions and soften at
their edges. Since half the target is the label itself,
:math:`2 L = L_{CE} + KL(\tau \| p) + H(\tau)`: the constraint :math:`p = \tau` has weight one and cannot be tuned,
which is what nacl changes. Reference: Islam and Glocker, IPMI 2021.

Neighbour-aware calibration (``nacl``):

.. math:: R(z_i) = \frac1C \sum_c |\tau_{ic} - z_{ic}|, \qquad \lambda = 0.1

or the mean of squares, pulls the logits themselves towards the class proportions :math:`\tau_i` around the voxel. Their
magnitude stays small and the weight of the constraint is free, unlike in svls. On softmax, z is replaced by p. The
paper writes a sum over classes; the mean is what both published codes compute, so their 0.1 is our 0.1.

Priors: "mean", proportions in the window with the voxel itself; "gaussian", the targets of svls. `parity` reproduces
the two published codes at the borders, and their own Gaussian:

=========== ============================== ===============================================================
parity      mean prior outside the image   gaussian prior
=========== ============================== ===============================================================
None        the nearest voxel              targets of svls
marginloss  class 0                        targets of svls
monai       nothing: shares sum below one  plain Gaussian over four sigma (no `kernel_size`), nothing outside
=========== ============================== ===============================================================

Reference: Murugesan et al., Neighbor-Aware Calibration of Segmentation Networks, MedIA 2025.

Class proportions around a voxel: with window weights :math:`w_j` and one-hot labels :math:`y`,
:math:`\tau_i = \sum_j w_j y_{i+j} / \sum_j w_j`, where

- mean: :math:`w = 1` in a cube of odd width, the voxel itself included;
- gaussian: the filter of svls. The neighbours have Gaussian weights that sum to one, and the voxel itself has weight
  one, whatever sigma: half the result is its own label.

Ignored neighbours have weight zero and the rest is divided by what is left; an ignored voxel has proportions zero.
Beyond the border stands a copy of the nearest voxel, unless another rule is asked for.

Cost: the filters are separable, and one class is filtered at a time (as bytes for the mean). So no one-hot copy of the
labels is made. The neighbours of the Gaussian are summed without their centre, not by subtracting it afterwards, so a
small sigma loses no digits. With :math:`a = e^{-1/2\sigma^2}` and tap :math:`a t_k` at distance k, filtering one axis
after the other keeps the full sum :math:`F` and the sum without centre :math:`N / a`:

.. math:: S = \sum_{k \ge 1} t_k (F_{-k} + F_{+k}), \qquad F \leftarrow F + a S, \qquad N / a \leftarrow N / a + S .
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check, check_choice
from segcal.losses.ce import PENALTIES, PenalisedLoss, Penalty, cross_entropy
from segcal.types import IGNORED, Labels, Logits

Borders: TypeAlias = Literal["replicate", "class_0", "nothing"]
Prior: TypeAlias = Literal["mean", "gaussian"]
Space: TypeAlias = Literal["logits", "softmax"]
Parity: TypeAlias = Literal["marginloss", "monai"]
BORDERS: dict[Parity | None, Borders] = {None: "replicate", "marginloss": "class_0", "monai": "nothing"}
# A voxel beyond the border that is of no class but counts in the sum of weights.
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
            "voxels along every axis. Use larger crops or a smaller kernel_size; single slices are images without "
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


class SpatialLabelSmoothing(Loss):
    """Cross-entropy with labels that a Gaussian has smoothed.

    Args:
        sigma: of the Gaussian, in voxels.
        kernel_size: odd width of the neighbourhood.
        class_weights, ignore_index, reduction: as of :class:`Loss`.
    """

    formula = "−Σ_c ỹ_c log p_c, ỹ half the own label and half a Gaussian mean of the neighbours"

    def __init__(
        self,
        sigma: float = 2.0,
        kernel_size: int = 3,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.sigma, self.kernel_size = _check_sigma(sigma), _check_kernel_size(kernel_size)

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy with spatially smoothed labels."""
        shares = gaussian_prior(labels, logits.shape[1], self.kernel_size, self.sigma, logits.dtype)
        targets = stacked(shares, labels, logits.shape[1], logits.dtype)  # zero at ignored voxels
        return cross_entropy(logits, labels, self.class_weights, self.reduction, targets=targets)


class MeanDistance(torch.autograd.Function):
    """The mean over classes of ``|value - share|``, which keeps one byte per value for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shares: Iterable[Tensor]) -> Tensor:
        """Return ``(batch, *space)`` from values ``(batch, classes, *space)`` and a prior, class by class."""
        signs = torch.empty(values.shape, dtype=torch.int8, device=values.device)
        total = torch.zeros_like(values[:, 0])
        for number, share in enumerate(shares):
            gap = torch.sub(values[:, number], share)
            total += gap.abs()
            signs[:, number] = gap.sign_()
        ctx.save_for_backward(signs)
        return total / values.shape[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the values; differentiable in `grad`, as second derivatives need it."""
        (signs,) = ctx.saved_tensors
        return signs * (grad / signs.shape[1])[:, None], None


def neighbour_penalty(values: Tensor, shares: Iterable[Tensor], labels: Labels, penalty: Penalty = "l1") -> Tensor:
    """Return, per voxel, the mean over classes of the distance of values from a prior's shares, or of its square."""
    if penalty == "l1":
        return MeanDistance.apply(values, shares)
    prior = stacked(shares, labels, values.shape[1], values.dtype)
    return functional.mse_loss(values, prior, reduction="none").mean(dim=1)


class NeighbourAware(PenalisedLoss):
    """Cross-entropy plus the distance of the logits from the class proportions around each voxel.

    Args:
        weight: factor on the penalty.
        prior: "mean" or "gaussian".
        kernel_size: odd width of the neighbourhood.
        sigma: of the gaussian prior, in voxels.
        penalty: "l1" or "l2".
        on: "logits" or "softmax".
        parity: a published code to reproduce, "marginloss" or "monai"; None for borders that repeat the image.
        class_weights, ignore_index, reduction: as of :class:`PenalisedLoss`.
    """

    formula = "ce + weight · mean_c |τ_c − z_c|, τ the class proportions around the voxel"

    def __init__(
        self,
        weight: float = 0.1,
        prior: Prior = "mean",
        kernel_size: int = 3,
        sigma: float = 1.0,
        penalty: Penalty = "l1",
        on: Space = "logits",
        parity: Parity | None = None,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight, class_weights, ignore_index, reduction)
        check_choice("prior", prior, ("mean", "gaussian"))
        check_choice("on", on, ("logits", "softmax"))
        check_choice("parity", parity, tuple(BORDERS))
        check_choice("penalty", penalty, PENALTIES)
        self.prior, self.on, self.parity = prior, on, parity
        self.kernel_size, self.sigma = _check_kernel_size(kernel_size), _check_sigma(sigma)
        self.penalty = penalty

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the distance from the prior of each voxel."""
        values = logits if self.on == "logits" else torch.softmax(logits, dim=1)
        return neighbour_penalty(values, self._shares(labels, logits.shape[1], logits.dtype), labels, self.penalty)

    def proportions(self, labels: Labels, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the prior ``(batch, classes, *space)`` of labels with :data:`segcal.types.IGNORED` where void."""
        return stacked(self._shares(labels, num_classes, dtype), labels, num_classes, dtype)

    def _shares(self, labels: Labels, num_classes: int, dtype: torch.dtype) -> Iterable[Tensor]:
        if self.prior == "mean":
            return mean_prior(labels, num_classes, self.kernel_size, dtype, BORDERS[self.parity])
        if self.parity == "monai":
            return plain_gaussian_prior(labels, num_classes, self.sigma, dtype)
        return gaussian_prior(labels, num_classes, self.kernel_size, self.sigma, dtype)


def _check_kernel_size(size: int) -> int:
    usable = isinstance(size, int) and not isinstance(size, bool) and size >= 3 and size % 2 == 1
    needed = "an odd whole number of at least 3 is needed. A neighbourhood has its voxel in the middle"
    check(usable, "kernel_size", size, needed)
    return size


def _check_sigma(sigma: float) -> float:
    positive = isinstance(sigma, int | float) and sigma > 0 and math.isfinite(sigma)
    check(positive, "sigma", sigma, "a positive number of voxels is needed. The usual values are 1 and 2")
    return float(sigma)
