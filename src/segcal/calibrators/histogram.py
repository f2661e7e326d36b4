r"""Histogram binning of the top label (Zadrozny and Elkan; the classical baseline).

The confidence :math:`m = \max_c S(z)_c` falls into one of B bins, and the winner gets the accuracy :math:`a_b` that its
bin had on the calibration set; the rest is spread over the other classes in proportion:

.. math:: q_{\hat y} = a_b, \qquad q_c = (1 - a_b) \frac{p_c}{1 - m} \quad (c \ne \hat y).

`edges` are the B - 1 inner edges of bins with equal mass, :math:`(e_{b-1}, e_b]`; `accuracy` is a. A bin whose accuracy
is below that of another class's share gives the voxel away: nothing is kept. The sum over the other classes is taken
in the log domain, so that saturated voxels lose nothing. `known` is 1 for bins in which the fit had voxels; in others,
and in a new calibrator, a voxel keeps its confidence. Translation-invariant. Tables are not trained by gradient:
2 B - 1 numbers, of which the edges move the result in jumps: B identifiable.
"""

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.errors import InputError
from segcal.numerics import canonical_logits, count_below, winner
from segcal.types import Context, Logits

BINS = 15


class Histogram(Calibrator):
    """Give each voxel the accuracy of the bin of its confidence.

    Args:
        bins: how many bins.
    """

    name = "histogram"
    title = "Histogram binning"
    translation_invariant = True
    preserves = None
    fitted_by = "histogram"
    edges: Tensor
    accuracy: Tensor
    known: Tensor

    def __init__(self, num_classes: int, bins: int = BINS) -> None:
        super().__init__(num_classes, bins=bins)
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
            raise InputError(f"bins is {bins!r}, but a count of at least 1 is needed. The default is {BINS}.")
        self.bins = bins
        self.register_buffer("edges", torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].clone())
        self.register_buffer("accuracy", torch.full((bins,), 0.5, dtype=torch.float64))
        self.register_buffer("known", torch.zeros(bins, dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return log q."""
        log_probs = canonical_logits(logits)
        first = winner(log_probs).unsqueeze(1)
        top = log_probs.gather(1, first)
        others = torch.logsumexp(log_probs.scatter(1, first, -torch.inf), dim=1, keepdim=True)
        bin_of = count_below(self.edges.to(logits.dtype), top.exp().detach())
        known = self.known.to(logits.dtype)[bin_of] > 0
        # Logarithms before the cast: an accuracy of 1 - 1e-9 is 1 in float32.
        new_top = torch.where(known, self.accuracy.log().to(logits.dtype)[bin_of], top)
        rest = torch.where(known, torch.log1p(-self.accuracy).to(logits.dtype)[bin_of], others)
        return (log_probs - others + rest).scatter(1, first, new_top)

    def num_parameters(self) -> int:
        """Return the entries of the table."""
        return 2 * self.bins - 1

    def num_identifiable(self) -> int:
        """Return the number of bins."""
        return self.bins
