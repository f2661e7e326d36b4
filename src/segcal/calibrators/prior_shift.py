r"""Prior shift: another calibrator, for a site where classes are more or less frequent than where it was fitted.

Let q be calibrated probabilities of the inner calibrator, and the class frequencies :math:`\pi` at the site of the fit
and :math:`\pi'` at the new one. Bayes' rule gives

.. math:: s_k = \log q_k + a_k, \qquad a_k = \log \frac{\pi'_k}{\pi_k}, \qquad s_k \le s_i ,

with the winner i of the logits. Where the inner calibrator keeps the mask, a class that would rise above the winner
stops beside it, so that the mask stays. The order of the other classes may change: argmax-preserving. Nothing is fitted
to labels; :func:`segcal.adapt` estimates a.
"""

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, Holder
from segcal.numerics import winner
from segcal.types import Context, Logits


class PriorShift(Holder):
    """Weigh the probabilities of another calibrator by how much more frequent each class has become.

    Args:
        inner: the calibrator of the site where labels were.
    """

    name = "prior_shift"
    title = "Prior shift"
    fitted_by = "nothing"
    in_paper = False
    inner: Calibrator

    def __init__(self, num_classes: int, inner: Calibrator) -> None:
        super().__init__(num_classes, [inner], inner=inner)
        self.inner, self.wants = inner, inner.wants
        self.preserves = "argmax" if inner.preserves else None
        self.log_ratio = nn.Parameter(torch.zeros(num_classes, dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return weighed log-probabilities, none above that of the old winner."""
        return self._weighed(self.inner.scores(logits, context), logits)

    def scores_at(self, logits: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the scores ``(C, n)`` of single voxels, whose neighbourhood is known."""
        return self._weighed(self.inner.scores_at(logits, context)[None], logits[None])[0]

    def _weighed(self, scores: Tensor, logits: Tensor) -> Tensor:
        ratio = self.log_ratio.to(scores.dtype).reshape(1, -1, *[1] * (scores.ndim - 2))
        weighed = scores - scores.amax(dim=1, keepdim=True) + ratio
        if self.preserves is None:
            return weighed
        return torch.minimum(weighed, weighed.gather(1, winner(logits).unsqueeze(1)))

    def num_identifiable(self) -> int:
        """Return those of the inner calibrator, and one ratio less than classes."""
        return self.inner.num_identifiable() + self.num_classes - 1
