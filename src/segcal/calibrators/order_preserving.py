r"""Intra order-preserving network (IOP): every gap between neighbouring classes is scaled by a learned factor.

Sort the logits of a voxel, :math:`y_1 \ge \dots \ge y_C`, and take the gaps :math:`u_k = y_k - y_{k+1} \ge 0`. A
network f sees the gaps and gives one positive factor for each,

.. math:: y'_k - y'_{k+1} = m_k u_k, \qquad m = \epsilon + \log\left(1 + e^{f(u) + c_0}\right) > 0 .

A gap stays a gap and a tie a tie, so every order is kept, strictly where factor times gap does not underflow; the
scores are sums of non-negative drops below the winner, so this holds in floating point. Gaps do not see an offset:
translation-invariant. One network serves all classes: it sees sizes and not names ("order-invariant" in the paper).
With the network's last layer at zero all factors are 1 (c_0 and the form of m are those of
:mod:`segcal.calibrators.temperature_tree`), and a new calibrator is the identity.

Departures from the released code: the network sees gaps instead of logits, which makes it translation-invariant; its
default size is 32, 32 instead of 150, 150, because it runs on every voxel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.calibrators.affine import scores_from_outputs
from segcal.calibrators.base import Calibrator
from segcal.calibrators.perceptron import Perceptron
from segcal.calibrators.temperature_tree import before_positive, positive
from segcal.numerics import descending
from segcal.types import Context, Logits


class OrderPreservingNetwork(Calibrator):
    """Scale the gaps between neighbouring classes.

    Args:
        hidden: the sizes of the network's hidden layers.
        seed: of its random start.
    """

    name = "iop"
    title = "Order-keeping network"
    translation_invariant = True
    preserves = "order"
    fitted_by = "gradient"

    def __init__(self, num_classes: int, hidden: Sequence[int] = (32, 32), seed: int = 0) -> None:
        super().__init__(num_classes, hidden=tuple(hidden), seed=seed)
        self.network = Perceptron(self.num_classes - 1, hidden, self.num_classes - 1, seed)

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return zero for the winner, and for the others the sums of the scaled gaps above them, negative."""
        last = logits.movedim(1, -1)
        ordered, order = descending(last.reshape(-1, self.num_classes))
        gaps = ordered[:, :-1] - ordered[:, 1:]
        sorted_scores = scores_from_outputs(positive(self.network(gaps)) * gaps, "stacked_drops")
        scores = torch.zeros_like(sorted_scores).scatter(1, order, sorted_scores)
        return scores.reshape(last.shape).movedim(-1, 1)

    def become_temperature(self, temperature: float) -> None:
        """Scale every gap by one over this temperature."""
        self.network.set_constant(before_positive(1 / temperature))

    def num_identifiable(self) -> int:
        """Return the number of parameters less one scale a hidden unit."""
        return self.network.num_identifiable()
