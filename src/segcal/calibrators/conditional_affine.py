r"""Class-conditional affine scaling that keeps the decision (CMS_ap, CMS_op).

Bring the logits of a voxel into canonical order. To keep the *argmax*, swap the winner into first place; to keep the
*order*, sort all classes. The winner i selects its own affine map :math:`h_i(z) = W_i z + b_i`. Written in gaps
:math:`x = G z`, with :math:`x_1 = z_1` and, for k >= 2,

.. math:: x_k = z_1 - z_k \ \text{(argmax)}, \qquad x_k = z_{k-1} - z_k \ \text{(order)},

a decision is kept if and only if non-negative gaps stay non-negative (Sec. 3.2.1, Eq. 12):

.. math:: G W G^{-1} = \begin{pmatrix} a & r^\top \\ 0 & A \end{pmatrix}, \qquad A \ge 0, \qquad (G b)_k \ge 0 .

`weight` is A per expert, `bias` the drops :math:`(G b)_{k \ge 2}`, `gauge` is :math:`(a, r, b_1)`, which shifts all
outputs of a voxel alike. No probability depends on it, but the penalty (Eq. 15) reads all of W and b. Gaps do not see
an offset, so the map is translation-invariant. C (C^2 + 1) parameters, C^2 (C - 1) identifiable.

Departures from the paper: A and the drops are parameters with bounds instead of softplus. So a new calibrator is
exactly the identity, and the problem stays convex. The diagonal of A is at least 1e-3. Otherwise an expert that is
wrong more often than right would shrink its gaps to zero, and every voxel would be a tie.

The scores stay in gaps with the winner at zero. Every score is zero minus a sum of non-negative terms, so the promise
holds in floating point, where the dense W reverses near ties.
"""

import functools
from typing import Literal

import torch
from torch import Tensor, nn

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.convex import Frame
from segcal.kernels.plan import FusedPlan, on_host
from segcal.numerics import descending, winner


@functools.lru_cache(maxsize=16)
def _positions(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the winners, and the canonical positions of all classes for each: its own is the first."""
    classes = torch.arange(num_classes, device=device)
    place = torch.where(classes == 0, classes[:, None], classes).where(classes != classes[:, None], 0)
    return classes[:, None, None], place


class ConditionalAffine(AffineCalibrator):
    """One constrained affine map per predicted class.

    Args:
        preserves: "argmax" for CMS_ap, "order" for CMS_op.
    """

    translation_invariant = True
    lowest = 0.0
    positives = ("weight", "bias")
    rests_on = "all gap weights and drops are not negative"

    def __init__(self, num_classes: int, preserves: Literal["argmax", "order"]) -> None:
        super().__init__(num_classes, preserves=preserves)
        self.name = "cms_ap" if preserves == "argmax" else "cms_op"
        self.title = "Mask-keeping scaling" if preserves == "argmax" else "Order-keeping scaling"
        self.preserves = preserves
        self.outputs = "drops" if preserves == "argmax" else "stacked_drops"
        self.smallest_start = 1e-3 if num_classes <= 5 else 1e-4  # the error at the start grows with the classes
        gauge = torch.zeros(num_classes, num_classes + 1)
        gauge[:, 0] = 1
        self.set_parameters(torch.eye(num_classes - 1).repeat(num_classes, 1, 1), gauge=gauge)

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return the gaps in canonical order, the winner, and that order."""
        order = self._canonical_order(logits)
        canonical = logits.gather(-1, order)
        above = canonical[:, :1] if self.preserves == "argmax" else canonical[:, :-1]
        return Frame(above - canonical[:, 1:], expert=order[:, 0], order=order)

    def plan(self) -> FusedPlan:
        """Return A and the drops; to keep the argmax, of classes in their own order, with zeros for the winner."""
        weight, drops = on_host(self.weight, self.bias)
        if self.preserves == "order":
            return FusedPlan("drops", (weight, drops), keeps=True)
        expert, place = _positions(self.num_classes, weight.device)
        weight, drops = nn.functional.pad(weight, (1, 0, 1, 0)), nn.functional.pad(drops, (1, 0))
        tables = (weight[expert, place[:, :, None], place[:, None]], -drops[expert[..., 0], place])
        return FusedPlan("affine", tables, keeps=True)

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return W = G^-1 (a, r; 0, A) G and b = G^-1 (b_1, drops)."""
        first_row, first_bias = gauge[..., :-1], gauge[..., -1:]
        lower = torch.cat([torch.zeros_like(weight[..., :1]), weight], dim=-1)
        in_gaps = torch.cat([first_row[..., None, :], lower], dim=-2)
        to_gaps = self._gap_matrix(weight)
        # G is its own inverse for argmax; for order the inverse is lower triangular. Solving covers both.
        matrix = torch.linalg.solve(to_gaps, in_gaps @ to_gaps)
        offsets = torch.linalg.solve(to_gaps, torch.cat([first_bias, bias], dim=-1)[..., None])[..., 0]
        return matrix, offsets

    def row_classes(self) -> Tensor:
        """Return the classes in canonical order without the winner; of sorted classes, none."""
        others = torch.arange(1, self.num_classes).expand(self.num_classes, -1)
        if self.preserves == "order":
            return torch.full_like(others, -1)
        return others.where(others != torch.arange(self.num_classes)[:, None], 0)  # the first is in the winner's place

    def _canonical_order(self, logits: Tensor) -> Tensor:
        if self.preserves == "order":
            return descending(logits)[1]
        first = winner(logits)[:, None]
        order = torch.arange(self.num_classes, device=logits.device).expand(logits.shape).clone()
        order = order.scatter(-1, first, 0)  # class 1 goes to the winner's place ...
        return torch.cat([first, order[:, 1:]], dim=-1)  # ... and the winner to the first

    def _gap_matrix(self, like: Tensor) -> Tensor:
        """Return G of Eq. 12."""
        classes = self.num_classes
        matrix = -torch.eye(classes, dtype=like.dtype, device=like.device)
        matrix[0, 0] = 1
        if self.preserves == "argmax":
            matrix[:, 0] = 1
        else:
            matrix[torch.arange(1, classes), torch.arange(classes - 1)] = 1
        return matrix
