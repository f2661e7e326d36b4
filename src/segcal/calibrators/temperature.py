r"""Temperature scaling (TS): one number for all voxels and classes.

.. math:: q = S(\beta z), \qquad \beta = 1 / T \in [10^{-3}, 10^3] \quad\text{(Eq. 3)}

`inverse_temperature` is :math:`\beta`; the likelihood is convex in it, not in T. A constant added to the logits
becomes a constant in the scores: translation-invariant. Multiplication by a positive number keeps every order, and
its rounding is monotone, so no two classes change places in floating point either; the winner is moved to zero
first, so that near ties are not lost to a large offset. 1 parameter, 1 identifiable.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Evidence
from segcal.calibrators.convex import LARGEST, SMALLEST_SCALE, ConvexCalibrator, Frame
from segcal.kernels.plan import FusedPlan
from segcal.types import Context, Logits


class TemperatureScaling(ConvexCalibrator):
    """Divide all logits by one temperature."""

    name = "ts"
    title = "Temperature scaling"
    translation_invariant = True
    preserves = "order"
    variables = ("inverse_temperature",)
    one_temperature = True

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.inverse_temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature."""
        return (logits - logits.amax(dim=1, keepdim=True)) * self.inverse_temperature.to(logits.dtype)

    def plan(self) -> FusedPlan:
        """Return one factor for all distances to the winner."""
        scale = self.inverse_temperature.expand(self.num_classes)
        return FusedPlan("affine", (scale, torch.zeros_like(scale)[None]), keeps=True)

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return the distances to the winner."""
        return Frame(logits - logits.amax(dim=1, keepdim=True))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the widest range of a temperature."""
        return torch.tensor([SMALLEST_SCALE], dtype=torch.float64), torch.tensor([LARGEST], dtype=torch.float64)

    def positive(self) -> dict[str, float]:
        """Return the inverse temperature."""
        return {"inverse_temperature": SMALLEST_SCALE}

    def evidence(self) -> dict[str, Evidence]:
        """The order is kept because the inverse temperature is positive."""
        beta = float(self.inverse_temperature.detach())
        return {"decision": Evidence("the inverse temperature is positive", max(0.0, -beta))}
