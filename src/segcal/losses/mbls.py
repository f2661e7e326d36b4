r"""Margin-based label smoothing (``mbls``).

.. math:: R(z) = \frac1C \sum_c \max(0, \max_j z_j - z_c - m), \qquad m = 5, \ \lambda = 0.1

holds the distances between the winning logit and the others below a margin; the winner contributes zero and counts in
the mean. The quadratic penalty is the square of what exceeds the margin. (The published code squares before it cuts,
which also punishes distances below the margin.) Reference: Liu et al., CVPR 2022; Murugesan et al., MedIA 2023.
"""

from torch import Tensor

from segcal.losses.base import Reduction, check_choice, check_positive
from segcal.losses.penalised import PENALTIES, PenalisedLoss, Penalty
from segcal.types import IGNORED, Labels, Logits


class MarginLabelSmoothing(PenalisedLoss):
    """Cross-entropy plus a penalty on logit distances beyond a margin.

    Args:
        margin: distance from the winning logit that is free.
        weight: factor on the penalty.
        penalty: "l1" for the excess, "l2" for its square.
        class_weights, ignore_index, reduction: as of :class:`PenalisedLoss`.
    """

    formula = "ce + weight · mean_c max(0, max_j z_j − z_c − margin)"

    def __init__(
        self,
        margin: float = 5.0,
        weight: float = 0.1,
        penalty: Penalty = "l1",
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight, class_weights, ignore_index, reduction)
        check_choice("penalty", penalty, PENALTIES)
        self.margin, self.penalty = check_positive(margin, "margin"), penalty

    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the mean over classes of what exceeds the margin, or of its square."""
        excess = (logits.amax(dim=1, keepdim=True) - logits - self.margin).relu()
        return (excess if self.penalty == "l1" else excess.square()).mean(dim=1)
