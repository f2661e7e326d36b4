r"""Label smoothing (``label_smoothing``).

.. math:: L_i = (1 - \alpha) (-\log p_{i, y_i}) + \alpha \, \frac{1}{C} \sum_c (-\log p_{ic}), \qquad \alpha = 0.1

is the cross-entropy with the target :math:`(1 - \alpha)` one-hot plus :math:`\alpha` uniform, and equals
:class:`torch.nn.CrossEntropyLoss` with `label_smoothing`. Reference: Szegedy et al., CVPR 2016.
"""

from torch import Tensor

from segcal.arguments import fits
from segcal.errors import InputError
from segcal.losses.base import Loss, Reduction
from segcal.losses.ce import cross_entropy
from segcal.types import IGNORED, Labels, Logits


class LabelSmoothing(Loss):
    """Cross-entropy with labels that are a little uniform.

    Args:
        smoothing: the uniform part of the target, from 0 to 1.
        class_weights, ignore_index, reduction: as of :class:`Loss`.
    """

    formula = "(1 − smoothing) ce + smoothing · mean_c(−log p_c)"

    def __init__(
        self,
        smoothing: float = 0.1,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        if not fits(smoothing, float) or not 0 <= smoothing <= 1:
            raise InputError(
                f"smoothing is {smoothing!r}, but a share from 0 to 1 is needed. Choose 0 for plain cross-entropy."
            )
        self.smoothing = float(smoothing)

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy with smoothed labels."""
        return cross_entropy(logits, labels, self.class_weights, self.reduction, self.smoothing)
