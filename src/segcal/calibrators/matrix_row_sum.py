r"""Matrix scaling with equal row sums (MS_c): the translation-invariant form of matrix scaling.

.. math:: q = S(W z + b), \qquad W \mathbf{1} = s \mathbf{1} \quad\text{(Sec. 3.1)}

`weight` holds the first C - 1 columns of W, `gauge` the common row sum s; the last column is what is missing to s.
Then :math:`W z = W_{free} (z_{1..C-1} - z_C) + s z_C \mathbf{1}`: the last term is the same for all classes and is
dropped, so only differences of logits are used and the map is translation-invariant to the last bit. s matters to the
penalty (Eq. 15), which reads the full W. Does not keep the decision. C^2 + 1 parameters, C (C - 1) identifiable.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.affine import AffineCalibrator, Frame
from segcal.calibrators.matrix import matrix_bounds


class RowSumMatrixScaling(AffineCalibrator):
    """One affine map of the logits whose rows have one sum."""

    title = "Matrix scaling, offset-free"
    translation_invariant = True
    preserves = None

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.weight = nn.Parameter(torch.eye(num_classes, dtype=torch.float64)[:, :-1].clone())
        self.bias = nn.Parameter(torch.zeros(num_classes, dtype=torch.float64))
        self.gauge = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def frame(self, logits: Tensor) -> Frame:
        """Return the differences to the last logit."""
        return Frame(logits[:, :-1] - logits[:, -1:])

    def weight_bounds(self) -> tuple[Tensor, Tensor]:
        """Return wide bounds; the diagonal stays positive."""
        low, high = matrix_bounds(self.num_classes)
        return low[:, :-1], high[:, :-1]

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return all C columns of W, and b."""
        return torch.cat([weight, gauge[..., None] - weight.sum(-1, keepdim=True)], dim=-1), bias

    def num_identifiable(self) -> int:
        """Return C (C - 1)."""
        return self.num_classes * (self.num_classes - 1)
