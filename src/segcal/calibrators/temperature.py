r"""No calibration, temperature scaling (TS), and ensemble temperature scaling (ETS).

*No calibration* is :math:`q = S(z)`: the row of every comparison that shows what happens if nothing is done.

*TS* has one number for all voxels and classes,

.. math:: q = S(\beta z), \qquad \beta = 1 / T \in [10^{-3}, 10^3] \quad\text{(Eq. 3)}

`inverse_temperature` is :math:`\beta`; the likelihood is convex in it, not in T. A constant added to the logits
becomes a constant in the scores: translation-invariant. Multiplication by a positive number keeps every order, and
its rounding is monotone, so no two classes change places in floating point either. The winner is moved to zero
first, so that near ties are not lost to a large offset. 1 parameter, 1 identifiable.

*ETS* is a mixture of tempered, original and uniform probabilities,

.. math:: q = w_1 S(\beta z) + w_2 S(z) + w_3 / C, \qquad w \ge 0,\ \textstyle\sum_k w_k = 1 \quad\text{(Eq. 6)}

`inverse_temperature` is :math:`\beta`, `mixture` is w. Each term keeps the order of the classes and does not see an
offset: translation-invariant, order-preserving. The sum is taken in the log domain. Rounding of exponentials need not
be monotone. So tensor operations compute in descending order of the logits and cut by a running minimum; kernels use
monotone steps. No two classes change places in floating point. 4 parameters, 3 identifiable (the scale of w is lost).
"""

import math

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Frame
from segcal.kernels.plan import FusedPlan, on_host
from segcal.numerics import descending, running_minimum
from segcal.types import Context, Logits

# Of what is left of a mixture where the rest is far below: kernels compute in float32.
SMALLEST_WEIGHT = 1e-30


class Identity(Calibrator):
    """Return the softmax of the logits, unchanged."""

    name = "identity"
    title = "No calibration"
    translation_invariant = True
    preserves = "order"
    fitted_by = "nothing"
    competes = True

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the distances to the winner, so that an offset is gone before anything is rounded."""
        return logits - logits.amax(dim=1, keepdim=True)

    def plan(self) -> FusedPlan:
        """Return the logits as they are, up to the largest of their voxel."""
        return FusedPlan.scaled(torch.ones((), dtype=torch.float64), self.num_classes)


class TemperatureScaling(ConvexCalibrator):
    """Divide all logits by one temperature."""

    name = "ts"
    title = "Temperature scaling"
    translation_invariant = True
    preserves = "order"
    variables = positives = ("inverse_temperature",)
    rests_on = "the inverse temperature is positive"
    one_temperature = True
    competes = True

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.inverse_temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature."""
        return (logits - logits.amax(dim=1, keepdim=True)) * self.inverse_temperature.to(logits.dtype)

    def plan(self) -> FusedPlan:
        """Return one factor for all distances to the winner."""
        return FusedPlan.scaled(self.inverse_temperature, self.num_classes)

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return the distances to the winner."""
        return Frame(logits - logits.amax(dim=1, keepdim=True))


class EnsembleTemperatureScaling(Calibrator):
    """Mix tempered probabilities with the original and the uniform ones."""

    name = "ets"
    title = "Ensemble temperature scaling"
    translation_invariant = True
    preserves = "order"
    fitted_by = "mixture"
    positives, mixtures = ("inverse_temperature",), ("mixture",)
    rests_on = "inverse temperature and mixture weights are not negative"
    redundant = 1  # the scale of the weights
    competes = True

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
        tables = on_host(torch.cat([self.inverse_temperature[None], self.mixture]))
        beta, tempered, original, uniform = tables[0].tolist()
        if min(tempered, original, uniform, beta) < 0:  # no fit gives it: no order to keep
            return None
        if uniform == 0 and 0 in (tempered, original):
            factor = self.inverse_temperature if tempered else torch.ones_like(self.inverse_temperature)
            return FusedPlan.scaled(factor, self.num_classes)
        if (uniform or min(tempered, original)) < SMALLEST_WEIGHT:
            return None
        return FusedPlan("mixture", tuple(tables), keeps=True, bounded=uniform > 0)
