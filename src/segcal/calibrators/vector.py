r"""Vector scaling (VS) and its translation-invariant form (VS_ti).

.. math::
    \text{VS:}\quad q = S(a \odot z + b), \qquad
    \text{VS}_{ti}:\quad q = S(\beta z + b) \qquad\text{(Eq. 4)}

`scale` is a (C numbers) or :math:`\beta` (one), `bias` is b. VS is translation-invariant only if all components of a
are equal, which is what VS_ti enforces: temperature scaling with a class bias. Neither keeps the decision.
The penalty is Eq. 15 on b; VS adds :math:`\lambda\, \mathrm{mean}_c (a_c - \bar a)^2`, which leaves temperature
scaling unpenalised. Parameters: 2C and C + 1; identifiable: 2C - 1 and C, since a constant in b is lost.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, Evidence
from segcal.types import Logits


class VectorScaling(Calibrator):
    """Scale and shift each class.

    Args:
        num_classes: number of classes C.
        common_scale: one scale for all classes (VS_ti), which makes it translation-invariant.
    """

    title = "Vector scaling"
    preserves = None
    fitted_by = "convex"

    def __init__(self, num_classes: int, common_scale: bool = False) -> None:
        super().__init__(num_classes, common_scale=common_scale)
        self.translation_invariant = common_scale
        self.title = "Vector scaling, offset-free" if common_scale else self.title
        self.has_penalty = (not common_scale, True)
        self.scale = nn.Parameter(torch.ones(1 if common_scale else num_classes, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(num_classes, dtype=torch.float64))

    def scores(self, logits: Logits, image: Tensor | None = None) -> Tensor:
        """Return scale times logits plus bias; with a common scale, of the distances to the winner."""
        shape = (1, -1) + (1,) * (logits.ndim - 2)
        if self.translation_invariant:
            logits = logits - logits.amax(dim=1, keepdim=True)
        return logits * self.scale.to(logits.dtype).view(shape) + self.bias.to(logits.dtype).view(shape)

    def penalty(self, lam: float, mu: float) -> Tensor:
        """Return Eq. 15 on the bias, and the spread of the scales."""
        spread = (self.scale - self.scale.mean()).square().mean()
        return lam * spread + mu * self.bias.square().mean()

    def evidence(self) -> dict[str, Evidence]:
        """The offset cancels if and only if all scales are equal."""
        spread = float((self.scale.max() - self.scale.min()).detach())
        return {} if self.translation_invariant else {"offset": Evidence("all classes have the same scale", spread)}

    def num_identifiable(self) -> int:
        """Return all but the constant of the bias."""
        return self.scale.numel() + self.num_classes - 1
