r"""Spatially varying label smoothing (``svls``).

.. math:: L_i = -\sum_c \tilde y_{ic} \log p_{ic}, \qquad \tilde y_i = \tfrac12 y_i + \tfrac12 \tau_i

with :math:`\tau_i` the Gaussian mean of the neighbours' one-hot labels (:mod:`segcal.losses.neighbours`). Labels stay
hard inside regions and soften at their edges. Since half the target is the label itself,
:math:`2 L = L_{CE} + KL(\tau \| p) + H(\tau)`: the constraint :math:`p = \tau` has weight one and cannot be tuned,
which is what nacl changes. Reference: Islam and Glocker, IPMI 2021.
"""

from torch import Tensor

from segcal.losses.base import Loss, Reduction
from segcal.losses.ce import cross_entropy
from segcal.losses.neighbours import check_kernel_size, check_sigma, gaussian_prior, stacked
from segcal.types import IGNORED, Labels, Logits


class SpatialLabelSmoothing(Loss):
    """Cross-entropy with labels that a Gaussian has smoothed.

    Args:
        sigma: of the Gaussian, in voxels.
        kernel_size: odd width of the neighbourhood.
        class_weights, ignore_index, reduction: as of :class:`Loss`.
    """

    formula = "−Σ_c ỹ_c log p_c, ỹ half the own label and half a Gaussian mean of the neighbours"

    def __init__(
        self,
        sigma: float = 2.0,
        kernel_size: int = 3,
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(class_weights, ignore_index, reduction)
        self.sigma, self.kernel_size = check_sigma(sigma), check_kernel_size(kernel_size)

    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the cross-entropy with spatially smoothed labels."""
        shares = gaussian_prior(labels, logits.shape[1], self.kernel_size, self.sigma, logits.dtype)
        targets = stacked(shares, labels, logits.shape[1], logits.dtype)  # zero at ignored voxels
        return cross_entropy(logits, labels, self.class_weights, self.reduction, targets=targets)
