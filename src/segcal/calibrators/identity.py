r"""No calibration: :math:`q = S(z)`.

The row of every comparison that shows what happens if nothing is done. Translation-invariant and
order-preserving; no parameters.
"""

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.kernels.plan import FusedPlan
from segcal.types import Context, Logits


class Identity(Calibrator):
    """Return the softmax of the logits, unchanged."""

    name = "identity"
    title = "No calibration"
    translation_invariant = True
    preserves = "order"
    fitted_by = "nothing"

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the logits."""
        return logits

    def plan(self) -> FusedPlan:
        """Return the logits as they are."""
        ones = torch.ones(self.num_classes, dtype=torch.float64)
        return FusedPlan("affine", (ones, torch.zeros_like(ones)[None]), "nothing", keeps=True)
