r"""Calibrators that are tables, not trained by gradient: isotonic calibration and histogram binning.

**Isotonic calibration** (IRM of Mix-n-Match, Zhang et al., ICML 2020): one monotone function for all classes.

.. math:: q_c \propto \max\bigl(f(p_c) + 10^{-9} p_c,\ 10^{-12}\bigr), \qquad p = S(z),

with f non-decreasing, fitted by isotonic regression of one-hot labels on probabilities over all pairs of voxel and
class. f is a table: `points` and `values`, linear between points and constant beyond them; both have `knots` entries,
of which repeated last ones mean nothing. f is the same for all classes and sees probabilities only: order-preserving
and translation-invariant. Rounding need not be monotone. So tensor operations compute in descending order of the logits
and cut by a running minimum; kernels use monotone steps. Where f is flat, the winner keeps a visible lead
(:mod:`segcal.calibrators.tie_break`).

`used` is 0 in a new one, which is the identity, and 1 after a fit. Tables are not trained by gradient: 2 `knots` - 1
numbers, of which the scale of f is lost.

With `foreground` it is the usual map of two classes instead. f maps the probability of class 1, and class 0 has the
rest (Zadrozny & Elkan, KDD 2002). It may move the decision.

**Histogram binning** of the top label (Zadrozny and Elkan; the classical baseline).

The confidence :math:`m = \max_c S(z)_c` falls into one of B bins, and the winner gets the accuracy :math:`a_b` that its
bin had on the calibration set. The rest is spread over the other classes in proportion:

.. math:: q_{\hat y} = a_b, \qquad q_c = (1 - a_b) \frac{p_c}{1 - m} \quad (c \ne \hat y).

`edges` are the B - 1 inner edges of bins with equal mass, :math:`(e_{b-1}, e_b]`; `accuracy` is a. A bin whose accuracy
is below that of another class's share gives the voxel away: nothing is kept. The sum over the other classes is taken
in the log domain, so that saturated voxels lose nothing. `known` is 1 for bins in which the fit had voxels; in others,
and in a new calibrator, a voxel keeps its confidence. Translation-invariant. Tables are not trained by gradient:
2 B - 1 numbers, of which the edges move the result in jumps: B identifiable.
"""

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator, Evidence
from segcal.calibrators.tie_break import with_lead
from segcal.checks import check_count
from segcal.errors import InputError
from segcal.kernels.plan import FusedPlan, on_host
from segcal.numerics import canonical_logits, count_below, descending, running_minimum, winner
from segcal.types import Context, Logits, Preserves

SLOPE = 1e-9
FLOOR = 1e-12
KNOTS = 1024
BINS = 15


class Isotonic(Calibrator):
    """Map every class's probability by one non-decreasing function, and normalise.

    Args:
        knots: how many points the function may have; a fit with more joins the lightest of them.
        foreground: of two classes, map the probability of class 1 alone.
    """

    name = "isotonic"
    title = "Isotonic regression"
    translation_invariant = True
    preserves: Preserves = "order"
    fitted_by = "isotonic"
    fitted_tables = ("points", "values")
    redundant = 1  # the scale of the function
    points: Tensor
    values: Tensor
    used: Tensor
    competes = True

    def __init__(self, num_classes: int, knots: int = KNOTS, foreground: bool = False) -> None:
        super().__init__(num_classes, knots=knots, foreground=foreground)
        check_count(knots, "knots", 4, f"The default is {KNOTS}.")
        if foreground and num_classes != 2:
            raise InputError(
                f"foreground is asked for {num_classes} classes, but it is a map of two. Leave foreground out."
            )
        self.knots, self.foreground = knots, foreground
        self.preserves = None if foreground else "order"
        self.register_buffer("points", torch.linspace(0, 1, knots, dtype=torch.float64))
        self.register_buffer("values", torch.linspace(0, 1, knots, dtype=torch.float64))
        self.register_buffer("used", torch.zeros((), dtype=torch.float64))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the logarithm of the mapped probabilities."""
        if self.foreground:
            odds = torch.log_softmax(logits, dim=1)
            mapped = self.function(odds[:, 1].exp()).clamp(max=1 - torch.finfo(odds.dtype).eps)
            both = torch.stack([torch.log1p(-mapped), mapped.log()], dim=1)
            return torch.where(self.used.to(both.dtype) > 0, both, odds)
        ordered, order = descending(logits)
        log_probs = torch.log_softmax(ordered - ordered[:, :1], dim=1)
        mapped = running_minimum(self.function(log_probs.exp()).log())
        mapped = with_lead(mapped, torch.zeros_like(order[:, 0]))
        chosen = torch.where(self.used.to(mapped.dtype) > 0, mapped, log_probs)
        return torch.zeros_like(chosen).scatter(1, order, chosen)

    def plan(self) -> FusedPlan | None:
        """Return the table, or the identity; a function of one class has no fused form."""
        if self.foreground:
            return None
        points, values, used = on_host(self.points, self.values, self.used)
        if not bool(used > 0):
            return FusedPlan.scaled(torch.ones_like(used), self.num_classes)
        return FusedPlan("table", (points, values, points.new_tensor([SLOPE, FLOOR])), keeps=True)

    def function(self, probs: Tensor) -> Tensor:
        """Return max(f(p) + 1e-9 p, 1e-12)."""
        points, values = self.points.to(probs.dtype), self.values.to(probs.dtype)
        right = count_below(points, probs.detach()).clamp(1, self.knots - 1)
        left = right - 1
        width = points[right] - points[left]
        share = torch.where(width > 0, (probs - points[left]) / width.clamp(min=1e-30), 1.0).clamp(0, 1)
        found = values[left] + share * (values[right] - values[left])
        return (found + SLOPE * probs).clamp(min=FLOOR)

    def evidence(self) -> dict[str, Evidence]:
        """The order is kept because the function does not fall."""
        fall = float((self.values[:-1] - self.values[1:]).max())
        return {"decision": Evidence("the fitted function does not fall", max(0.0, fall))}


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
    fitted_tables = ("edges", "accuracy")
    edges: Tensor
    accuracy: Tensor
    known: Tensor

    def __init__(self, num_classes: int, bins: int = BINS) -> None:
        super().__init__(num_classes, bins=bins)
        check_count(bins, "bins", 1, f"The default is {BINS}.")
        self.bins, self.redundant = bins, bins - 1
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
