r"""What the convex calibrators have in common: the scores are affine in the parameters.

In suitable coordinates every one of them is

.. math:: s = \mathrm{outputs}(W_e\, x + b_e), \qquad x = \mathrm{features}(z) \in \mathbb{R}^F,

where the voxel may select an expert :math:`e` (its predicted class) and may bring the classes into a canonical
order first. The negative log-likelihood is then convex in :math:`(W_e, b_e)`. A :class:`Frame` holds the voxels in
these coordinates; it is all that the exact solver needs to know about a calibrator, besides the bounds of the
parameters and the penalty (Eq. 15)

.. math:: R = \frac{\lambda}{C (C - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{C} \sum_j b_j^2,

which is a sum of squares of linear functions of the parameters, averaged over experts.
"""

from abc import abstractmethod
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator
from segcal.numerics import running_minimum

# Bounds within which an optimum is sought: without them separable data have none (definitions 15).
LARGEST = 1e3
SMALLEST_SCALE = 1e-3

Outputs: TypeAlias = Literal["scores", "drops", "stacked_drops"]


class Frame(NamedTuple):
    """Voxels in the coordinates in which a calibrator is affine.

    Attributes:
        features: ``(N, F)``, the x of each voxel.
        expert: ``(N,)``, the expert it selects, or None if there is only one.
        order: ``(N, C)``, the class at each canonical position, or None if classes keep their places.
    """

    features: Tensor
    expert: Tensor | None = None
    order: Tensor | None = None


class AffineCalibrator(Calibrator):
    """A calibrator whose scores are affine in its parameters, with zero, one or C experts.

    Attributes:
        outputs: what ``W x + b`` is: the scores of all classes; the drops of classes 2 to C below the winner; or
            the drops from each class to the next in descending order.
        weight: ``(K, F)``, or ``(C, K, F)`` with experts.
        bias: ``(K,)`` or ``(C, K)``.
        gauge: parameters that no probability depends on, but the penalty does; ``(G,)`` or ``(C, G)``.
    """

    fitted_by = "convex"
    has_penalty = (True, True)
    outputs: Outputs = "scores"
    weight: nn.Parameter
    bias: nn.Parameter
    gauge: nn.Parameter

    @abstractmethod
    def frame(self, logits: Tensor) -> Frame:
        """Bring logits ``(N, C)`` into the coordinates in which this calibrator is affine."""

    @abstractmethod
    def weight_bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest value of each entry of one expert's `weight`."""

    def bias_bounds(self) -> tuple[float, float]:
        """Return the lowest and highest value of a bias."""
        return -LARGEST, LARGEST

    @abstractmethod
    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return the full W ``(..., C, C)`` and b ``(..., C)`` of Eq. 15, of which the parameters are coordinates.

        Both are linear in the arguments, which have a leading axis for experts and may have others before it.
        """

    @property
    def num_experts(self) -> int:
        """Return the number of experts; 1 if all voxels share one map."""
        return self.weight.shape[0] if self.weight.ndim == 3 else 1

    def penalty(self, lam: float, mu: float) -> Tensor:
        """Return Eq. 15, averaged over experts."""
        weight, bias, gauge = (p if self.weight.ndim == 3 else p[None] for p in (self.weight, self.bias, self.gauge))
        matrix, offsets = self.full_map(weight, bias, gauge)
        classes = self.num_classes
        weights = without_diagonal(matrix).square().sum((-2, -1)) / (classes * (classes - 1))
        return (lam * weights + mu * offsets.square().sum(-1) / classes).mean()

    def affine_scores(self, logits: Tensor) -> Tensor:
        """Return the scores of logits ``(N, C)``, in the order of the classes."""
        frame = self.frame(logits)
        linear = _select_affine(frame, self.weight.to(logits.dtype), self.bias.to(logits.dtype))
        canonical = scores_from_outputs(linear, self.outputs)
        if frame.order is None:
            return canonical
        return torch.zeros_like(canonical).scatter(-1, frame.order, canonical)

    def scores(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Return ``outputs(W x + b)`` for every voxel."""
        voxels = logits.movedim(1, -1)
        scores = self.affine_scores(voxels.reshape(-1, self.num_classes))
        return scores.reshape(voxels.shape).movedim(-1, 1)


def without_diagonal(matrix: Tensor) -> Tensor:
    """Return the matrix with zeros on its diagonal."""
    return matrix * (1 - torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))


def scores_from_outputs(linear: Tensor, outputs: Outputs) -> Tensor:
    """Return scores in canonical order from ``W x + b``.

    Drops are non-negative, so the winner stays at zero and nothing rises above it, in floating point too. The
    running minimum guards against a parallel prefix sum, which need not be monotone in the last bit.
    """
    if outputs == "scores":
        return linear
    below = -linear if outputs == "drops" else running_minimum(-linear.cumsum(-1), axis=-1)
    return torch.cat([torch.zeros_like(below[..., :1]), below], dim=-1)


def _select_affine(frame: Frame, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply to each voxel the map of its expert."""
    if frame.expert is None:
        return torch.addmm(bias, frame.features, weight.T)
    if torch.compiler.is_compiling():  # shapes must not depend on values: every expert sees every voxel
        linear = frame.features.new_zeros(frame.features.shape[0], bias.shape[1])
        for number in range(weight.shape[0]):
            own = torch.addmm(bias[number], frame.features, weight[number].T)
            linear = torch.where((frame.expert == number)[:, None], own, linear)
        return linear
    linear = frame.features.new_zeros(frame.features.shape[0], bias.shape[1])
    for number in range(weight.shape[0]):
        mine = (frame.expert == number).nonzero().squeeze(1)
        if len(mine):
            linear = linear.index_copy(0, mine, torch.addmm(bias[number], frame.features[mine], weight[number].T))
    return linear
