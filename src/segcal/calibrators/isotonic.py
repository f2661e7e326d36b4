r"""Isotonic calibration (IRM of Mix-n-Match, Zhang et al., ICML 2020): one monotone function for all classes.

.. math:: q_c \propto \max\bigl(f(p_c) + 10^{-9} p_c,\ 10^{-12}\bigr), \qquad p = S(z),

with f non-decreasing, fitted by isotonic regression of one-hot labels on probabilities over all pairs of voxel and
class. f is a table: `points` and `values`, linear between points and constant beyond them; both have `knots` entries,
of which repeated last ones mean nothing. f is the same for all classes and sees probabilities only: order-preserving
and translation-invariant. Rounding need not be monotone, so tensor operations compute in descending order of the
logits and cut by a running minimum, and kernels by steps that are; where f is flat, the winner keeps a visible lead
(:mod:`segcal.calibrators.tie_break`).

`used` is 0 in a new one, which is the identity, and 1 after a fit. Tables are not trained by gradient: 2 `knots` - 1
numbers, of which the scale of f is lost.

With `foreground` it is the usual map of two classes instead: f maps the probability of class 1, and class 0 has the
rest (Zadrozny & Elkan, KDD 2002). It may move the decision.
"""

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator, Evidence
from segcal.calibrators.tie_break import with_lead
from segcal.errors import InputError
from segcal.kernels.plan import FusedPlan
from segcal.numerics import count_below, descending, running_minimum
from segcal.types import Context, Logits, Preserves

SLOPE = 1e-9
FLOOR = 1e-12
KNOTS = 1024


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
    points: Tensor
    values: Tensor
    used: Tensor

    def __init__(self, num_classes: int, knots: int = KNOTS, foreground: bool = False) -> None:
        super().__init__(num_classes, knots=knots, foreground=foreground)
        if isinstance(knots, bool) or not isinstance(knots, int) or knots < 4:
            raise InputError(f"knots is {knots!r}, but a count of at least 4 is needed. The default is {KNOTS}.")
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
        if not bool(self.used > 0):
            ones = self.points.new_ones(self.num_classes)
            return FusedPlan("affine", (ones, torch.zeros_like(ones)[None]), keeps=True)
        return FusedPlan("table", (self.points, self.values, self.points.new_tensor([SLOPE, FLOOR])), keeps=True)

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

    def num_parameters(self) -> int:
        """Return the entries of the table."""
        return 2 * self.knots

    def num_identifiable(self) -> int:
        """Return the entries of the table without the scale of its values."""
        return 2 * self.knots - 1
