r"""No calibration: :math:`q = S(z)`.

The row of every comparison that shows what happens if nothing is done. Translation-invariant and
order-preserving; no parameters.
"""

from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.types import Logits


class Identity(Calibrator):
    """Return the softmax of the logits, unchanged."""

    title = "No calibration"
    translation_invariant = True
    preserves = "order"
    fitted_by = "nothing"

    def scores(self, logits: Logits, image: Tensor | None = None) -> Tensor:
        """Return the logits."""
        return logits

    def num_identifiable(self) -> int:
        """There is nothing to identify."""
        return 0
