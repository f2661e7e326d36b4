r"""Matrix scaling (MS) and Dirichlet calibration (DC): one affine map of all classes.

.. math::
    \text{MS:}\quad q = S(W z + b), \qquad
    \text{DC:}\quad q = S(W \log S(z) + b) \qquad\text{(Eq. 5, 10)}

`weight` is W, `bias` is b. MS sees the raw logits, so it depends on their arbitrary offset unless all rows of W have
one sum; DC sees canonical logits and is translation-invariant. Neither keeps the decision; forced to, both would
collapse to temperature scaling (App. A.2). C (C + 1) parameters, C^2 - 1 identifiable: one vector added to all
rows of (W, b) is lost in the softmax. The penalty (Eq. 15) reads the full W, without a reference row, so the
identity costs nothing.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.affine import LARGEST, SMALLEST_SCALE, AffineCalibrator, Frame
from segcal.calibrators.base import Evidence
from segcal.numerics import canonical_logits


class MatrixScaling(AffineCalibrator):
    """One affine map of the logits, or of the log-probabilities.

    Args:
        num_classes: number of classes C.
        canonical: see log-probabilities (DC) instead of raw logits (MS).
    """

    title = "Matrix scaling"
    preserves = None

    def __init__(self, num_classes: int, canonical: bool = False) -> None:
        super().__init__(num_classes, canonical=canonical)
        self.translation_invariant = canonical
        self.title = "Dirichlet calibration" if canonical else self.title
        self.weight = nn.Parameter(torch.eye(num_classes, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(num_classes, dtype=torch.float64))
        self.gauge = nn.Parameter(torch.zeros(0, dtype=torch.float64))

    def frame(self, logits: Tensor) -> Frame:
        """Return the logits, or the log-probabilities."""
        return Frame(canonical_logits(logits) if self.options["canonical"] else logits)

    def weight_bounds(self) -> tuple[Tensor, Tensor]:
        """Return wide bounds; the diagonal stays positive."""
        return matrix_bounds(self.num_classes)

    def full_map(self, weight: Tensor, bias: Tensor, gauge: Tensor) -> tuple[Tensor, Tensor]:
        """Return W and b."""
        return weight, bias

    def evidence(self) -> dict[str, Evidence]:
        """The offset cancels if and only if all rows have one sum."""
        sums = self.weight.detach().sum(1)
        spread = float(sums.max() - sums.min())
        return {} if self.translation_invariant else {"offset": Evidence("all rows of W have the same sum", spread)}

    def num_identifiable(self) -> int:
        """Return C^2 - 1."""
        return self.num_classes**2 - 1


def matrix_bounds(size: int) -> tuple[Tensor, Tensor]:
    """Return the bounds of definitions 15: diagonals in [1e-3, 1e3], the rest in [-1e3, 1e3]."""
    low = torch.full((size, size), -LARGEST, dtype=torch.float64).fill_diagonal_(SMALLEST_SCALE)
    return low, torch.full((size, size), LARGEST, dtype=torch.float64)
