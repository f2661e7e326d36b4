r"""Matrix scaling and Dirichlet calibration: affine maps of all classes, one for all voxels or one per predicted class.

.. math::
    \text{MS:}\quad q = S(W z + b), \qquad
    \text{DC:}\quad q = S(W \log S(z) + b) \qquad\text{(Eq. 5, 10)}

`weight` is W, `bias` is b. MS sees the raw logits, so it depends on their arbitrary offset unless all rows of W have
one sum. DC sees canonical logits and is translation-invariant. Neither keeps the decision; forced to, both would
collapse to temperature scaling (App. A.2). C (C + 1) parameters, C^2 - 1 identifiable: one vector added to all
rows of (W, b) is lost in the softmax. The penalty (Eq. 15) reads the full W, without a reference row, so the
identity costs nothing.

**MS_c**, with equal row sums (Sec. 3.1): :math:`W \mathbf{1} = s \mathbf{1}`. `weight` holds the first C - 1 columns of
W, `gauge` the common row sum s; the last column is what is missing to s. Then
:math:`W z = W_{free} (z_{1..C-1} - z_C) + s z_C \mathbf{1}`. The last term is the same for all classes and is dropped.
So only differences of logits are used and the map is translation-invariant to the last bit. s matters to the penalty.
C^2 + 1 parameters, C (C - 1) identifiable.

**CDC**, one Dirichlet map per predicted class (Sec. 3.2): :math:`q = S(W_i \log S(z) + b_i)`, i the winner, the first
axis of `weight` and `bias`. The paper brings the winner into first place before it applies the map. For an
unconstrained map this only renames rows and columns and changes neither q nor the penalty, so classes keep their order
here. It does not keep the decision: it is the unconstrained partner of CMS_ap and CMS_op. C^2 (C + 1) parameters, C
(C^2 - 1) identifiable.
"""

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.base import Evidence


class MatrixScaling(AffineCalibrator):
    """One affine map of the logits, or of the log-probabilities.

    Args:
        canonical: see log-probabilities (DC) instead of raw logits (MS).
    """

    preserves = None

    def __init__(self, num_classes: int, canonical: bool = False) -> None:
        super().__init__(num_classes, canonical=canonical)
        self.name = "dc" if canonical else "ms"
        self.title = "Dirichlet calibration" if canonical else "Matrix scaling"
        self.translation_invariant = canonical
        self.centre = "energy" if canonical else "nothing"
        self.set_parameters(torch.eye(num_classes))

    def evidence(self) -> dict[str, Evidence]:
        """The offset cancels if and only if all rows have one sum."""
        sums = self.weight.detach().sum(1)
        spread = float(sums.max() - sums.min())
        return {} if self.translation_invariant else {"offset": Evidence("all rows of W have the same sum", spread)}


class RowSumMatrixScaling(AffineCalibrator):
    """One affine map of the logits whose rows have one sum."""

    name = "ms_c"
    title = "Matrix scaling, offset-free"
    translation_invariant = True
    preserves = None
    centre = "last"

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.set_parameters(torch.eye(num_classes)[:, :-1], gauge=torch.ones(1))

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return all C columns of W, and b."""
        return torch.cat([weight, gauge[..., None] - weight.sum(-1, keepdim=True)], dim=-1), bias


class ConditionalDirichlet(AffineCalibrator):
    """One affine map of the log-probabilities for each predicted class."""

    name = "cdc"
    title = "Class-conditional Dirichlet"
    translation_invariant = True
    preserves = None

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.set_parameters(torch.eye(num_classes).repeat(num_classes, 1, 1))
