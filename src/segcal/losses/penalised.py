r"""Cross-entropy plus a penalty on every voxel: what ecp, mbls and nacl share.

.. math:: L = L_{CE} + \lambda \, \frac{1}{|V|} \sum_{i \in V} R(z_i)

over the voxels :math:`V` that count. :math:`R` is a mean over classes, as in the published code; a formula that sums
over classes has a :math:`\lambda` that is C times smaller. Class weights act on the cross-entropy alone.
"""

from abc import abstractmethod
from typing import Literal, TypeAlias

from torch import Tensor

from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction, check_positive, reduce_voxels
from segcal.losses.ce import cross_entropy
from segcal.types import IGNORED, Labels, Logits

Penalty: TypeAlias = Literal["l1", "l2"]


class Penalised(Loss):
    """Cross-entropy plus a penalty.

    Args:
        weight: factor on the penalty.
        class_weights: one factor a class for the cross-entropy, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        weight: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.weight = check_positive(weight, "weight")

    @abstractmethod
    def penalty_map(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the penalty of each voxel ``(batch, *space)``; what stands at ignored voxels does not matter."""

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy plus the weighted penalty."""
        entropy = cross_entropy(logits, labels, self.class_weights, self.reduction)
        return entropy + self.weight * reduce_voxels(self.penalty_map(logits, labels), labels, self.reduction)


def check_penalty(penalty: str) -> Penalty:
    """Return `penalty` if it is one."""
    if penalty not in ("l1", "l2"):
        raise InputError(f"penalty is {penalty!r}, but l1 or l2 is needed. Choose one of these.")
    return penalty  # type: ignore[return-value]
