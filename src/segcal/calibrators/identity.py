r"""No calibration: :math:`q = S(z)`.

The row of every comparison that shows what happens if nothing is done. Translation-invariant and
order-preserving; no parameters.
"""

from torch import Tensor

from segcal.calibrators.base import Calibrator
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
