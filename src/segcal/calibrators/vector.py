r"""Vector scaling (VS) and its translation-invariant form (VS_ti).

.. math::
    \text{VS:}\quad q = S(a \odot z + b), \qquad
    \text{VS}_{ti}:\quad q = S(\beta z + b) \qquad\text{(Eq. 4)}

`scale` is a (C numbers) or :math:`\beta` (one), `bias` is b. VS is translation-invariant only if all components of a
are equal, which is what VS_ti enforces: temperature scaling with a class bias. Neither keeps the decision.
The penalty is Eq. 15 on b; VS adds :math:`\lambda\, \mathrm{mean}_c (a_c - \bar a)^2`, which leaves temperature
scaling unpenalised. Parameters: 2C and C + 1; identifiable: 2C - 1 and C, since a constant in b is lost.

With :math:`p = S(s)` and per-class features :math:`(z_c, 1)`, gradient and Hessian in (a, b) are sums over classes of
:math:`(p - e_y)_c (z_c, 1)` and of :math:`p_c (\delta_{cd} - p_d)` times products of these features. A common a adds
up the rows and columns of its class.
"""

import math

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Evidence
from segcal.calibrators.convex import Block, ConvexCalibrator, Frame
from segcal.kernels.plan import FusedPlan
from segcal.types import Context, Logits


class VectorScaling(ConvexCalibrator):
    """Scale and shift each class.

    Args:
        common_scale: one scale for all classes (VS_ti), which makes it translation-invariant.
    """

    preserves = None
    variables = ("scale", "bias")
    positives = ("scale",)
    first_sample = 1 << 16
    redundant = 1
    competes = True

    def __init__(self, num_classes: int, common_scale: bool = False) -> None:
        super().__init__(num_classes, common_scale=common_scale)
        self.name = "vs_ti" if common_scale else "vs"
        self.title = "Vector scaling, offset-free" if common_scale else "Vector scaling"
        self.translation_invariant = common_scale
        self.scale = nn.Parameter(torch.ones(1 if common_scale else num_classes, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(num_classes, dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return scale times logits plus bias; with a common scale, of the distances to the winner."""
        shape = (1, -1) + (1,) * (logits.ndim - 2)
        logits = self.frame(logits).features
        return logits * self.scale.to(logits.dtype).view(shape) + self.bias.to(logits.dtype).view(shape)

    def plan(self) -> FusedPlan:
        """Return the scales and biases."""
        tables = (self.scale.expand(self.num_classes), self.bias[None])
        return FusedPlan("affine", tables, "top" if self.translation_invariant else "nothing")

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return the logits, with the winner at zero where the offset must not matter."""
        return Frame(logits - logits.amax(dim=1, keepdim=True) if self.translation_invariant else logits)

    def penalised(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how far scales are from their mean, and the biases, each over the root of how many there are."""
        scale, bias = theta.split([self.scale.numel(), self.num_classes], dim=-1)
        spread = (scale - scale.mean(-1, keepdim=True)) / math.sqrt(scale.shape[-1])
        return (
            spread[..., : 0 if self.translation_invariant else None],
            bias / math.sqrt(self.num_classes),
            bias[..., :0],
        )

    def anchor(self, inverse_temperature: float) -> Tensor:
        """Return zero: the penalty is the same at every common scale."""
        return torch.zeros(self.scale.numel() + self.num_classes, dtype=torch.float64)

    def concerns(self) -> Tensor:
        """Return the class of each bias."""
        labels = torch.cat([torch.full((self.scale.numel(),), -1), torch.arange(self.num_classes)])
        return torch.stack([torch.full_like(labels, -1), labels], dim=-1)[None]

    def likelihood(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        """Return the summed NLL and its gradient."""
        value, gradient = 0.0, torch.zeros(2, self.num_classes, dtype=torch.float64)
        for part in block.steps(self.num_classes):
            z, w, t = part.features.double(), part.weight.double(), part.target.long()[None]
            log_probs = self._linear(z, theta).log_softmax(0)
            value += -float((w * log_probs.gather(0, t)[0]).sum())
            residual = log_probs.exp().scatter_add(0, t, -torch.ones_like(log_probs[:1])) * w
            gradient += torch.stack([(residual * z).sum(1), residual.sum(1)]).cpu()
        return value, self._reduce(gradient.flatten())

    def hessian(self, block: Block, theta: Tensor, total: float) -> Tensor:
        """Return the Hessian of the summed NLL, divided by `total`."""
        z, w, classes = block.features.double(), block.weight.double(), self.num_classes
        p = torch.softmax(self._linear(z, theta), dim=0)
        both = torch.cat([p * z, p])
        hessian = -(both * w) @ both.T
        index = torch.arange(classes, device=z.device)
        for rows, columns, power in ((0, 0, 2), (0, classes, 1), (classes, 0, 1), (classes, classes, 0)):
            hessian[rows + index, columns + index] += (w * p * z**power).sum(1)
        return self._reduce(self._reduce(hessian.cpu()).T) / total

    def _linear(self, z: Tensor, theta: Tensor) -> Tensor:
        scale, bias = theta.to(z.device)[:, None].split([self.scale.numel(), self.num_classes])
        return scale * z + bias

    def _reduce(self, rows: Tensor) -> Tensor:
        """Add up the entries of a common scale."""
        if not self.translation_invariant:
            return rows
        return torch.cat([rows[: self.num_classes].sum(0, keepdim=True), rows[self.num_classes :]])

    def evidence(self) -> dict[str, Evidence]:
        """The offset cancels if and only if all scales are equal."""
        spread = float((self.scale.max() - self.scale.min()).detach())
        return {} if self.translation_invariant else {"offset": Evidence("all classes have the same scale", spread)}
