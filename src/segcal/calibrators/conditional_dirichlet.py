r"""Class-conditional Dirichlet calibration (CDC): one Dirichlet map per predicted class.

.. math:: q = S(W_i \log S(z) + b_i), \qquad i = \arg\max_c z_c \quad\text{(Sec. 3.2)}

`weight` is ``(C, C, C)``, `bias` ``(C, C)``, first axis the predicted class. The paper brings the winner into first
place before it applies the map; for an unconstrained map this only renames rows and columns and changes neither q nor
the penalty, so classes keep their places here. Translation-invariant; does not keep the decision: it is the
unconstrained partner of CMS_ap and CMS_op. C^2 (C + 1) parameters, C (C^2 - 1) identifiable. The penalty is the mean
over experts of Eq. 15.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.affine import AffineCalibrator, Frame
from segcal.calibrators.matrix import matrix_bounds
from segcal.numerics import canonical_logits, winner


class ConditionalDirichlet(AffineCalibrator):
    """One affine map of the log-probabilities for each predicted class."""

    title = "Class-conditional Dirichlet"
    translation_invariant = True
    preserves = None

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.weight = nn.Parameter(torch.eye(num_classes, dtype=torch.float64).repeat(num_classes, 1, 1))
        self.bias = nn.Parameter(torch.zeros(num_classes, num_classes, dtype=torch.float64))
        self.gauge = nn.Parameter(torch.zeros(num_classes, 0, dtype=torch.float64))

    def frame(self, logits: Tensor) -> Frame:
        """Return log-probabilities and the predicted class."""
        return Frame(canonical_logits(logits), expert=winner(logits))

    def weight_bounds(self) -> tuple[Tensor, Tensor]:
        """Return wide bounds; the diagonal stays positive."""
        return matrix_bounds(self.num_classes)

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return each W and each b."""
        return weight, bias

    def num_identifiable(self) -> int:
        """Return C (C^2 - 1)."""
        return self.num_classes * (self.num_classes**2 - 1)
