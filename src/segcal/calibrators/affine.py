r"""The common form of most convex calibrators: scores that are affine in features of the logits.

In suitable coordinates each of them is

.. math:: s = \mathrm{outputs}(W_e\, x + b_e), \qquad x = \mathrm{features}(z) \in \mathbb{R}^F,

where the voxel may select an expert :math:`e` (its predicted class) and may bring the classes into a canonical
order first. The variables of an expert are the rows of :math:`(W_e, b_e)`, then its gauge. The penalty (Eq. 15)

.. math:: R = \frac{\lambda}{C (C - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{C} \sum_j b_j^2,

is a sum of squares of linear functions of them, averaged over experts; where strengths are chosen,
:math:`\frac{\nu}{C} \sum_j (W_{jj} - \beta)^2` is added. The Hessian of the likelihood of one expert is

.. math:: \sum_v w_v\, J^\top(\mathrm{diag}\,p_v - p_v p_v^\top) J \otimes x_v x_v^\top .
"""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from segcal.calibrators.base import SMALLEST_SCALE
from segcal.calibrators.convex import LARGEST, Block, ConvexCalibrator, Frame, Operator, Strengths, inward, outward
from segcal.kernels import affine_numba, affine_torch
from segcal.kernels.plan import Centre, FusedPlan, on_host
from segcal.numerics import canonical_logits, running_minimum, winner
from segcal.types import Context, Logits

Outputs: TypeAlias = Literal["scores", "drops", "stacked_drops"]


class AffineCalibrator(ConvexCalibrator):
    """A calibrator whose scores are affine in its parameters, with one expert or C.

    Attributes:
        outputs: what ``W x + b`` is: the scores of all classes; the drops of classes 2 to C below the winner; or
            the drops from each class to the next in descending order.
        centre: what is taken from the logits of a voxel: nothing, their free energy, or the last of them, which has no
            column of its own then.
        lowest: the lowest value of weights and biases; diagonals of weights are positive.
        weight: ``(K, F)``, or ``(C, K, F)`` with experts.
        bias: ``(K,)`` or ``(C, K)``.
        gauge: parameters that no probability depends on, but the penalty does; ``(G,)`` or ``(C, G)``.
    """

    centred = True
    by_products = True
    biased = True
    outputs: Outputs = "scores"
    centre: Centre = "energy"
    lowest = -LARGEST
    weight: nn.Parameter
    bias: nn.Parameter
    gauge: nn.Parameter
    competes = True

    def set_parameters(self, weight: Tensor, gauge: Tensor | None = None) -> None:
        """Start from this W, without a bias, and without a gauge, unless it is given."""
        bias = torch.zeros(weight.shape[:-1])
        gauge = torch.zeros(*weight.shape[:-2], 0) if gauge is None else gauge
        self.weight, self.bias, self.gauge = (nn.Parameter(x.double().contiguous()) for x in (weight, bias, gauge))

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return the logits without their centre, and the winner where it selects the map."""
        features = canonical_logits(logits) if self.centre == "energy" else logits
        if self.centre == "last":
            features = logits[:, :-1] - logits[:, -1:]
        return Frame(features, expert=winner(logits) if self.weight.ndim == 3 else None)

    def plan(self) -> FusedPlan:
        """Return W and b of every expert, W with a column for every class."""
        weight, bias = on_host(self.weight, self.bias)
        weight = nn.functional.pad(weight, (0, self.num_classes - weight.shape[-1]))
        tables = (weight, bias) if weight.ndim == 3 else (weight[None], bias[None])
        return FusedPlan("affine", tables, self.centre)

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return the full W ``(..., C, C)`` and b ``(..., C)`` of Eq. 15, of which the parameters are coordinates.

        Both are linear in the arguments, which have a leading axis for experts and may have others before it.
        """
        return weight, bias

    @property
    def num_experts(self) -> int:  # type: ignore[override]
        """The number of experts; 1 if all voxels share one map."""
        return self.weight.shape[0] if self.weight.ndim == 3 else 1

    @property
    def copies(self) -> int:  # type: ignore[override]
        """A fit also holds the curvature of each output: one square of its features."""
        return super().copies + self.weight.shape[-1] + 1

    def num_identifiable(self) -> int:
        """Return all but one vector for each expert, which its gauge has, or which is lost in the softmax."""
        return self.num_parameters() - self.num_experts * (self.num_classes + 1)

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return ``outputs(W x + b)`` for every voxel."""
        voxels = logits.movedim(1, -1)
        frame = self.frame(voxels.reshape(-1, self.num_classes))
        linear = _select_affine(frame, self.weight.to(logits.dtype), self.bias.to(logits.dtype))
        scores = scores_from_outputs(linear, self.outputs)
        if frame.order is not None:
            scores = torch.zeros_like(scores).scatter(-1, frame.order, scores)
        return scores.reshape(voxels.shape).movedim(-1, 1)

    def theta(self) -> Tensor:
        """Return the variables as ``(E, P)``: rows of (W, b), then the gauge."""
        rows = torch.cat([self.weight, self.bias[..., None]], dim=-1).reshape(self.num_experts, -1)
        return torch.cat([rows, self.gauge.reshape(self.num_experts, -1)], dim=1)

    @torch.no_grad()
    def set_theta(self, theta: Tensor) -> None:
        """Set weight, bias and gauge from ``(E, P)``."""
        for parameter, value in zip((self.weight, self.bias, self.gauge), self._unpack(theta), strict=True):
            parameter.copy_(value.reshape(parameter.shape))

    def _unpack(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weight, bias and gauge with their expert axis from ``(..., P)``."""
        rows, features = self.weight.shape[-2:]
        split = rows * (features + 1)
        both = theta[..., :split].reshape(*theta.shape[:-1], rows, features + 1)
        return both[..., :-1], both[..., -1], theta[..., split:]

    def variable_names(self) -> list[str]:
        """Return the names of one expert's variables."""
        rows, features = self.weight.shape[-2:]
        listed = []
        for row in range(rows):
            listed += [f"weight[{row}, {column}]" for column in range(features)] + [f"bias[{row}]"]
        return listed + [f"gauge[{i}]" for i in range(self.gauge.shape[-1])]

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of weights and biases; a gauge is free."""
        low = torch.full((self.weight.shape[-2], self.weight.shape[-1] + 1), self.lowest, dtype=torch.float64)
        low[:, :-1].fill_diagonal_(SMALLEST_SCALE)
        gauge = torch.full((self.gauge.shape[-1],), torch.inf, dtype=torch.float64)
        return torch.cat([low.flatten(), -gauge]), torch.cat([torch.full_like(low, LARGEST).flatten(), gauge])

    def penalised(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return off-diagonals of W, b, and the diagonal of W, each over the root of how many entries there are."""
        matrix, offsets = self.full_map(*self._unpack(theta))
        classes = self.num_classes
        return (
            _without_diagonal(matrix).flatten(-2) / math.sqrt(classes * (classes - 1)),
            offsets / math.sqrt(classes),
            matrix.diagonal(dim1=-2, dim2=-1) / math.sqrt(classes),
        )

    def concerns(self) -> Tensor:
        """Return expert and class of each row."""
        experts, rows = self.num_experts, self.row_classes()
        first = torch.arange(experts)[:, None] if experts > 1 else torch.full((1, 1), -1)
        pairs = torch.stack([first.expand(rows.shape), rows], dim=-1)
        both = pairs[:, :, None].expand(-1, -1, self.weight.shape[-1] + 1, -1).flatten(1, 2)
        return torch.cat([both, both.new_full((experts, self.gauge.shape[-1], 2), -1)], dim=1)

    def row_classes(self) -> Tensor:
        """Return the class that each row of each expert is about, ``(E, K)``; -1 if it is about no class."""
        return torch.arange(self.weight.shape[-2]).expand(self.num_experts, -1)

    def penalty_diagonal(self, strengths: Strengths) -> Tensor:
        """Return about what the penalty adds to the diagonal of the Hessian of one output, ``(F + 1,)``."""
        (lam, mu, nu), classes = strengths, self.num_classes
        share = 2 / self.num_experts
        weights = lam / (classes * (classes - 1)) + nu / classes**2  # one entry of a row is on the diagonal
        penalty = torch.full((self.weight.shape[-1] + 1,), share * weights, dtype=torch.float64)
        penalty[-1] = share * mu / classes
        return penalty

    def likelihood(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        """Return the summed NLL and its gradient, by the fused kernel where it can be used."""
        own = self._own(block, theta)
        fused = block.features.device.type == "cpu" and len(own) <= affine_numba.LARGEST_OUTPUTS
        kernel = affine_numba if fused else affine_torch
        value, gradient = kernel.likelihood(block.features, block.target, block.weight, own, self.outputs)
        return value, self._padded(outward(gradient, block.centre).reshape(-1).cpu())

    def hessian(self, block: Block, theta: Tensor, total: float) -> Tensor:
        """Return the Hessian of the summed NLL, divided by `total`."""
        own = self._own(block, theta)
        bend = (affine_torch.hessian(block.features, block.weight, own, self.outputs) / total).cpu()
        for _ in range(0 if block.centre is None else 2):  # from both sides
            bend = outward(bend.T.reshape(len(bend), len(own), -1), block.centre).reshape(bend.shape)
        gauge = self.gauge.shape[-1]
        return nn.functional.pad(bend, (0, gauge, 0, gauge)) if gauge else bend

    def operator(self, block: Block, theta: Tensor, total: float) -> Operator:
        """Return the Hessian of the summed NLL by its products, and the squares that belong to one output each."""
        own = self._own(block, theta)
        bend = affine_torch.hessian_operator(block.features, block.weight, own, self.outputs)

        def multiply(vector: Tensor) -> Tensor:
            direction = inward(vector[: own.numel()].reshape(own.shape).to(own.device), block.centre)
            return self._padded(outward(bend(direction), block.centre).reshape(-1).cpu() / total)

        def blocks() -> Tensor:
            found = affine_torch.hessian_blocks(block.features, block.weight, own, self.outputs).cpu()
            for _ in range(2):  # from both sides
                found = outward(found.mT, block.centre)
            return found / total

        return Operator(multiply, blocks)

    def _own(self, block: Block, theta: Tensor) -> Tensor:
        """Return (W, b) of one expert for features about their centre, where these are."""
        rows, features = self.weight.shape[-2:]
        own = theta[: rows * (features + 1)].reshape(rows, -1).to(block.features.device)
        own = inward(own, block.centre)
        if self.outputs == "scores" and block.centre is not None:
            own[:, -1] -= own[:, -1].max().clone()
        return own

    def _padded(self, values: Tensor) -> Tensor:
        """Return values of (W, b) with zeros for the gauge, which no probability depends on."""
        gauge = self.gauge.shape[-1]
        return torch.cat([values, values.new_zeros(gauge)]) if gauge else values


def _without_diagonal(matrix: Tensor) -> Tensor:
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
    linear = frame.features.new_zeros(frame.features.shape[0], bias.shape[1])
    compiling = torch.compiler.is_compiling()  # shapes must not depend on values: every expert sees every voxel
    for number in range(weight.shape[0]):
        if compiling:
            own = torch.addmm(bias[number], frame.features, weight[number].T)
            linear = torch.where((frame.expert == number)[:, None], own, linear)
            continue
        mine = (frame.expert == number).nonzero().squeeze(1)
        if len(mine):
            linear = linear.index_copy(0, mine, torch.addmm(bias[number], frame.features[mine], weight[number].T))
    return linear
