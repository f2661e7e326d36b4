r"""Losses that see the labels around a voxel: ``svls``, ``nacl``.

Spatially varying label smoothing (``svls``):

.. math:: L_i = -\sum_c \tilde y_{ic} \log p_{ic}, \qquad \tilde y_i = \tfrac12 y_i + \tfrac12 \tau_i

with :math:`\tau_i` the Gaussian mean of the neighbours' one-hot labels (:mod:`segcal.losses.neighbours`). Labels stay
hard inside regions and soften at their edges. Since half the target is the label itself,
:math:`2 L = L_{CE} + KL(\tau \| p) + H(\tau)`: the constraint :math:`p = \tau` has weight one and cannot be tuned,
which is what nacl changes. Reference: Islam and Glocker, IPMI 2021.

Neighbour-aware calibration (``nacl``):

.. math:: R(z_i) = \frac1C \sum_c |\tau_{ic} - z_{ic}|, \qquad \lambda = 0.1

or the mean of squares, pulls the logits themselves towards the class proportions :math:`\tau_i` around the voxel:
their magnitude stays small and the weight of the constraint is free, unlike in svls. On softmax, z is replaced by p.
The paper writes a sum over classes; the mean is what both published codes compute, so their 0.1 is our 0.1.

Priors (:mod:`segcal.losses.neighbours`): "mean", proportions in the window with the voxel itself; "gaussian", the
targets of svls. `parity` reproduces the two published codes at the borders, and their own Gaussian:

=========== ============================== ===============================================================
parity      mean prior outside the image   gaussian prior
=========== ============================== ===============================================================
None        the nearest voxel              targets of svls
marginloss  class 0                        targets of svls
monai       nothing: shares sum below one  plain Gaussian over four sigma (no `kernel_size`), nothing outside
=========== ============================== ===============================================================

Reference: Murugesan et al., Neighbor-Aware Calibration of Segmentation Networks, MedIA 2025.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from segcal.errors import InputError
from segcal.losses import neighbours
from segcal.losses.base import Loss, Reduction, check_choice
from segcal.losses.ce import cross_entropy
from segcal.losses.penalised import PENALTIES, PenalisedLoss, Penalty
from segcal.types import IGNORED, Labels, Logits

Prior: TypeAlias = Literal["mean", "gaussian"]
Space: TypeAlias = Literal["logits", "softmax"]
Parity: TypeAlias = Literal["marginloss", "monai"]
BORDERS: dict[Parity | None, neighbours.Borders] = {None: "replicate", "marginloss": "class_0", "monai": "nothing"}


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
        shares = neighbours.gaussian_prior(labels, logits.shape[1], self.kernel_size, self.sigma, logits.dtype)
        targets = neighbours.stacked(shares, labels, logits.shape[1], logits.dtype)  # zero at ignored voxels
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
    prior = neighbours.stacked(shares, labels, values.shape[1], values.dtype)
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
        return neighbours.stacked(self._shares(labels, num_classes, dtype), labels, num_classes, dtype)

    def _shares(self, labels: Labels, num_classes: int, dtype: torch.dtype) -> Iterable[Tensor]:
        if self.prior == "mean":
            return neighbours.mean_prior(labels, num_classes, self.kernel_size, dtype, BORDERS[self.parity])
        if self.parity == "monai":
            return neighbours.plain_gaussian_prior(labels, num_classes, self.sigma, dtype)
        return neighbours.gaussian_prior(labels, num_classes, self.kernel_size, self.sigma, dtype)


def _check_kernel_size(kernel_size: int) -> int:
    if isinstance(kernel_size, bool) or not isinstance(kernel_size, int) or kernel_size < 3 or kernel_size % 2 == 0:
        raise InputError(
            f"kernel_size is {kernel_size!r}, but an odd whole number of at least 3 is needed. "
            "A neighbourhood has its voxel in the middle."
        )
    return kernel_size


def _check_sigma(sigma: float) -> float:
    if not isinstance(sigma, int | float) or not (sigma > 0 and math.isfinite(sigma)):
        raise InputError(
            f"sigma is {sigma!r}, but a positive number of voxels is needed. The usual values are 1 and 2."
        )
    return float(sigma)
