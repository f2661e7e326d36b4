r"""Temperature scaling (TS): one number for all voxels and classes.

.. math:: q = S(\beta z), \qquad \beta = 1 / T \in [10^{-3}, 10^3] \quad\text{(Eq. 3)}

`inverse_temperature` is :math:`\beta`; the likelihood is convex in it, not in T. A constant added to the logits
becomes a constant in the scores: translation-invariant. Multiplication by a positive number keeps every order, and
its rounding is monotone, so no two classes change places in floating point either; the winner is moved to zero
first, so that near ties are not lost to a large offset. 1 parameter, 1 identifiable.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, Evidence
from segcal.types import Logits


class TemperatureScaling(Calibrator):
    """Divide all logits by one temperature."""

    title = "Temperature scaling"
    translation_invariant = True
    preserves = "order"
    fitted_by = "convex"

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.inverse_temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def scores(self, logits: Logits, image: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature."""
        return (logits - logits.amax(dim=1, keepdim=True)) * self.inverse_temperature.to(logits.dtype)

    def evidence(self) -> dict[str, Evidence]:
        """The order is kept because the inverse temperature is positive."""
        beta = float(self.inverse_temperature.detach())
        return {"decision": Evidence("the inverse temperature is positive", max(0.0, -beta))}

    def num_identifiable(self) -> int:
        """Return 1."""
        return 1
