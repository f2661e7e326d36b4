r"""Ensemble temperature scaling (ETS): a mixture of tempered, original and uniform probabilities.

.. math:: q = w_1 S(\beta z) + w_2 S(z) + w_3 / C, \qquad w \ge 0,\ \textstyle\sum_k w_k = 1 \quad\text{(Eq. 6)}

`inverse_temperature` is :math:`\beta`, `mixture` is w. Each term keeps the order of the classes and does not see an
offset: translation-invariant, order-preserving. The sum is taken in the log domain. Rounding of exponentials
need not be monotone, so tensor operations compute in descending order of the logits and cut by a running minimum,
and kernels by steps that are monotone: no two classes change places in floating point. 4 parameters, 3 identifiable
(the scale of w is lost).
"""

import math

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, Evidence
from segcal.calibrators.convex import SMALLEST_SCALE
from segcal.kernels.plan import FusedPlan
from segcal.numerics import descending, running_minimum
from segcal.types import Context, Logits

# Of what is left of a mixture where the rest is far below: kernels compute in float32.
SMALLEST_WEIGHT = 1e-30


class EnsembleTemperatureScaling(Calibrator):
    """Mix tempered probabilities with the original and the uniform ones."""

    name = "ets"
    title = "Ensemble temperature scaling"
    translation_invariant = True
    preserves = "order"
    fitted_by = "mixture"
    mixtures = ("mixture",)

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.inverse_temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.mixture = nn.Parameter(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the log of the mixture."""
        ordered, order = descending(logits)
        gaps = ordered - ordered[:, :1]
        tempered = torch.log_softmax(gaps * self.inverse_temperature.to(logits.dtype), dim=1)
        original = torch.log_softmax(gaps, dim=1)
        log_w = self.mixture.to(logits.dtype).log()
        log_q = torch.logaddexp(tempered + log_w[0], original + log_w[1])
        log_q = torch.logaddexp(log_q, (log_w[2] - math.log(self.num_classes)).expand_as(log_q))
        return torch.zeros_like(log_q).scatter(1, order, running_minimum(log_q))

    def plan(self) -> FusedPlan | None:
        """Return inverse temperature and weights; one factor where only one of the first two is there, as often."""
        tempered, original, uniform = self.mixture.tolist()
        if min(tempered, original, uniform, float(self.inverse_temperature)) < 0:  # no fit gives it: no order to keep
            return None
        if uniform == 0 and 0 in (tempered, original):
            factor = self.inverse_temperature if tempered else torch.ones_like(self.inverse_temperature)
            scale = factor.expand(self.num_classes)
            return FusedPlan("affine", (scale, torch.zeros_like(scale)[None]), keeps=True)
        if (uniform or min(tempered, original)) < SMALLEST_WEIGHT:
            return None
        tables = (torch.cat([self.inverse_temperature[None], self.mixture]),)
        return FusedPlan("mixture", tables, keeps=True, bounded=uniform > 0)

    def positive(self) -> dict[str, float]:
        """Return the inverse temperature."""
        return {"inverse_temperature": SMALLEST_SCALE}

    def evidence(self) -> dict[str, Evidence]:
        """The order is kept because every term of the mixture keeps it."""
        lowest = min(float(self.inverse_temperature.detach()), float(self.mixture.detach().min()))
        return {"decision": Evidence("inverse temperature and mixture weights are not negative", max(0.0, -lowest))}

    def num_identifiable(self) -> int:
        """Return 3: the temperature and two of the three weights."""
        return 3
