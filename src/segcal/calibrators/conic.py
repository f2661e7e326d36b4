r"""Conic scaling: every class below the winner is lowered by a non-negative combination of non-negative curves.

With gaps :math:`g_k = z_i - z_k \ge 0` to the winner i, and a few numbers u of the voxel's neighbourhood
(:mod:`segcal.calibrators.neighbourhood`),

.. math:: s_i = 0, \qquad s_k = -\sum_j \beta_j(u)\, r_j(g_k), \qquad q = S(s), \qquad
          \beta_j(u) = \theta_j + \sum_c \sum_h \theta_{chj}\, \phi_{ch}(u_c) \ge 0 .

*Ramps* :math:`r_j(g) = \mathrm{clamp}(g - t_j, 0, t_{j+1} - t_j)`, the last one open, make any non-decreasing piecewise
linear curve with f(0) = 0. *Hats* :math:`\phi_{ch}` are linear B-splines of context c, which sum to one, so the curve
changes with the context, in either direction. Knots of both are quantiles of what the fit saw.

**conic** has one curve for all classes. It does not fall, so no two classes change places: order-preserving. In
floating point too: clamping, multiplying by one non-negative number and adding in one sequence are monotone in g.
**conic_class** adds to :math:`\beta_j` a term of the pair of winner and class (with more than 12 classes, of the
class). Three ramps share one. No class rises above the winner: argmax-preserving. Neither sees the offset of the
logits. No coefficient is negative, and those of the common curve are at least 1e-3, so a class below the winner stays
visibly below.

The scores are linear in the coefficients: the likelihood is convex, and the optimum is certified (definitions 15). The
penalty squares differences between neighbouring hats (lam; and, a thousand times weaker, their values), coefficients of
classes (mu), and differences between neighbouring ramps (nu). Where all are strong, temperature scaling is left. An
image has one mean gap, and there are few images: its two hats are all but straight lines of the gap.

A new one has no contexts and is the identity; a fit takes :data:`USUAL`, as far as its cases offer them, by default.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.base import SMALLEST_SCALE, check_context
from segcal.calibrators.convex import LARGEST, Block, ConvexCalibrator, Frame
from segcal.calibrators.neighbourhood import CONTEXTS, WORDS, check_contexts, half_window, neighbourhood
from segcal.checks import check_count
from segcal.errors import InputError
from segcal.kernels import conic_numba, conic_torch
from segcal.kernels.apply import apply_plan
from segcal.kernels.plan import FusedPlan, on_host
from segcal.numerics import winner
from segcal.types import Context, Logits

# What is worth looking at on all ensembles that were tried: see docs/conic.md.
USUAL = ("gap_far", "share_far", "gap_image")
RAMPS, HATS, IMAGE_HATS = 8, 5, 2
# Ramps that share a coefficient of a class.
GROUP = 3
# Up to so many classes every pair of winner and class has a curve.
MOST_PAIRED = 12
# Where ramps end: quantiles of the gaps below the winner. The last one is open.
RAMP_QUANTILES = (0.02, 0.08, 0.2, 0.4, 0.6, 0.8, 0.95)
# What the values of hats weigh beside their differences: enough that the optimum is one point.
RIDGE = 1e-3
# How much more differences between ramps weigh in the curves of an image.
STRAIGHT = 1e3
# Values behind a quantile.
MOST_VALUES = 1 << 20


class Conic(ConvexCalibrator):
    """Lower every class by a curve of its gap to the winner, which changes with the voxel's neighbourhood.

    Args:
        by_class: whether winners and classes have coefficients of their own.
        contexts: names of :data:`~segcal.calibrators.neighbourhood.CONTEXTS`; None: the usual ones that cases offer.
        ramps: pieces of a curve.
        hats: knots of a context.
    """

    translation_invariant = True
    guarded = steepens = True
    in_paper = False
    knots: Tensor
    hat_knots: Tensor
    base: nn.Parameter
    hats: nn.Parameter
    of_pair: nn.Parameter
    competes = True

    def __init__(
        self,
        num_classes: int,
        by_class: bool = False,
        contexts: Sequence[str] | None = None,
        ramps: int = RAMPS,
        hats: int = HATS,
    ) -> None:
        super().__init__(num_classes, by_class=by_class, contexts=contexts, ramps=ramps, hats=hats)
        self.name, self.title = ("conic_class", "Conic scaling by class") if by_class else ("conic", "Conic scaling")
        self.preserves = "argmax" if by_class else "order"
        check_count(ramps, "ramps", 1, "Leave it out.")
        check_count(hats, "hats", 2, "Leave it out.")
        self.by_class, self.ramps, self.most_hats = by_class, ramps, hats
        self._declared = None if contexts is None else check_contexts(contexts)
        self.wants = USUAL if self._declared is None else self._declared
        self._make_room(self._declared or ())

    def _make_room(self, contexts: Sequence[str]) -> None:
        """Take parameters for these contexts: the identity."""
        self.contexts = tuple(contexts)
        self.options["contexts"] = None if self._declared is None and not contexts else list(contexts)
        self.pointwise = not contexts
        self.sees_members, self.sees_image = "disagreement" in contexts, "gap_image" in contexts
        self.hat_counts = [IMAGE_HATS if name == "gap_image" else self.most_hats for name in contexts]
        total, classes, groups = sum(self.hat_counts), self.num_classes, -(-self.ramps // GROUP)
        spans = [torch.arange(count, dtype=torch.float64) for count in self.hat_counts]
        self.register_buffer("knots", torch.arange(self.ramps, dtype=torch.float64) / 2)
        self.register_buffer("hat_knots", torch.cat([torch.zeros(0, dtype=torch.float64), *spans]))
        sizes: dict[str, tuple[int, ...]] = {"base": (self.ramps,), "hats": (total, self.ramps)}
        if self.by_class:
            sizes["of_pair"] = (classes, classes, groups) if classes <= MOST_PAIRED else (1, classes, groups)
        self.variables = tuple(sizes)
        for name, size in sizes.items():
            start = torch.full(size, 1.0 if name == "base" else 0.0, dtype=torch.float64)
            setattr(self, name, nn.Parameter(start))
        self.redundant = self.ramps * len(contexts)  # constants that move from one curve to another
        if self.by_class:  # a winner has no curve, and what all pairs have is the common curve's
            self.redundant += groups * (1 + (classes if classes <= MOST_PAIRED else 0))

    @property
    def neighbourhood(self) -> str:
        """The contexts, in words."""
        return "; ".join(WORDS[name] for name in self.contexts)

    def as_fitted(self) -> "Conic":
        """Return one that has what it wants to see."""
        return Conic(self.num_classes, self.by_class, self.wants, self.ramps, self.most_hats)

    def reach(self, axes: int) -> tuple[int, ...] | None:
        """Return half the largest window, in the last two axes."""
        return (0,) * (axes - 2) + (half_window(self.contexts),) * min(axes, 2)

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the scores, zero for the winner."""
        check_context(context)
        return self._mapped(logits, self.around(logits, context))

    def around(self, logits: Logits, context: Context | None) -> Tensor:
        """Return what its contexts say of every voxel."""
        return neighbourhood(logits, context, self.contexts, self.name)

    def plan(self) -> FusedPlan:
        """Return the curves."""
        tables = [self.knots, self.base, self.hats, self.hat_knots]
        tables.append(self.of_pair if self.by_class else self.base.new_zeros(0, 0, 0))
        return FusedPlan("curves", tuple(on_host(*tables)), keeps=True, spans=tuple(self.hat_counts), group=GROUP)

    def scores_at(self, logits: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the scores ``(C, n)`` of voxels whose neighbourhood is known."""
        around = self._own_rows(context, logits.shape[1]).to(logits.dtype)[None]
        who, plan = self._served(logits[None])
        if who.by == "torch" or plan is None:
            return self._mapped(logits[None], around)[0]
        return apply_plan(who.by, plan, logits[None], around, normalises=False)[0]

    def _mapped(self, logits: Tensor, around: Tensor) -> Tensor:
        gaps = logits.amax(dim=1, keepdim=True) - logits
        knots = self.knots.to(logits.dtype)
        slopes = self._shared_slopes(around)
        own = self._own_slopes(logits) if self.by_class else None
        scores = torch.zeros_like(gaps)
        for j in range(self.ramps):
            ramp = (gaps - knots[j]).clamp(min=0)
            ramp = ramp if j == self.ramps - 1 else ramp.minimum(knots[j + 1] - knots[j])
            slope = slopes[:, j : j + 1]
            scores = scores - (slope if own is None else slope + own[j // GROUP]) * ramp
        return scores

    def _shared_slopes(self, around: Tensor) -> Tensor:
        """Return the slope that all classes share, of every ramp, ``(batch, ramps, *space)``."""
        shape = (1, -1, *[1] * (around.ndim - 2))
        slopes = self.base.to(around.dtype).reshape(shape)
        tables, knots, start = self.hats.to(around.dtype), self.hat_knots.to(around.dtype), 0
        for number, count in enumerate(self.hat_counts):
            slopes = slopes + tables[start].reshape(shape)
            for h in range(start, start + count - 1):
                share = ((around[:, number : number + 1] - knots[h]) / (knots[h + 1] - knots[h])).clamp(0, 1)
                slopes = slopes + share * (tables[h + 1] - tables[h]).reshape(shape)
            start += count
        return slopes.clamp(min=0)

    def _own_slopes(self, logits: Tensor) -> list[Tensor]:
        """Return what belongs to winner and class, ``(batch, classes, *space)`` for every group of ramps."""
        first = winner(logits) if len(self.of_pair) > 1 else torch.zeros_like(logits[:, 0], dtype=torch.int64)
        tables = self.of_pair.to(logits.dtype).clamp(min=0).unbind(-1)
        return [table[first].movedim(-1, 1) for table in tables]

    @property
    def has_penalty(self) -> tuple[bool, bool]:  # type: ignore[override]
        """Whether lam and mu weigh anything; lam does as soon as there are contexts."""
        return True, self.by_class

    @property
    def num_features(self) -> int:
        """Positions of gaps and contexts."""
        return self.num_classes + len(self.contexts)

    def prepare(self, voxels: Iterable[tuple[Tensor, Tensor | None]]) -> None:
        """Take the contexts that the voxels offer, and put knots where the voxels are."""
        logits, found = some_voxels(voxels)
        known = [name for row, name in zip(found, CONTEXTS, strict=False) if not bool(row.isnan().any())]
        for name in self._declared or ():
            if name not in known:
                raise InputError(
                    f"contexts has {name!r}, but the cases do not offer it. They offer: {', '.join(known) or 'none'}."
                )
        self._make_room([name for name in self.wants if name in known])
        gaps = logits.amax(0) - logits
        shares = RAMP_QUANTILES if self.ramps == RAMPS else [(j + 0.5) / self.ramps for j in range(self.ramps - 1)]
        self.knots[1:] = quantile_knots(gaps[gaps > 0], shares, 0.0)
        spans = self.hat_knots.split(self.hat_counts)
        for row, knots in zip(self._own_rows(found, gaps.shape[1]), spans, strict=True):
            knots.copy_(quantile_knots(row, torch.linspace(0.02, 0.98, len(knots)).tolist(), -math.inf))

    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Return where gaps and contexts stand between knots; -1 for the winner."""
        gaps = logits.amax(1, keepdim=True) - logits
        columns = [positions(gaps, self.knots.to(gaps)).scatter(1, winner(logits)[:, None], -1.0)]
        spans = self.hat_knots.to(gaps).split(self.hat_counts)
        for row, knots in zip(self._own_rows(context, len(gaps)), spans, strict=True):
            columns.append(positions(row.to(gaps).clamp(knots[0], knots[-1]), knots)[:, None])
        return Frame(torch.cat(columns, dim=1))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return zero and a wide bound; the common curve is never flat."""
        low = nn.functional.pad(torch.full_like(self.base, SMALLEST_SCALE), (0, self.num_parameters() - self.ramps))
        return low.detach(), torch.full_like(low, LARGEST).detach()

    def penalised(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return differences between hats, coefficients of classes, and differences between ramps."""
        total = sum(self.hat_counts)
        base, hats, own = theta.split([self.ramps, total * self.ramps, theta.shape[-1] - (1 + total) * self.ramps], -1)
        rows = hats.reshape(*theta.shape[:-1], total, self.ramps)
        spans = rows.split(self.hat_counts, dim=-2) if total else ()
        across = [span.diff(dim=-2).flatten(-2) for span in spans]
        along = [base.diff(dim=-1)]
        for name, span in zip(self.contexts, spans, strict=True):
            along.append(math.sqrt(STRAIGHT if name == "gap_image" else 1.0) * span.diff(dim=-1).flatten(-2))
        return torch.cat([math.sqrt(RIDGE) * hats, *across], -1), own, torch.cat(along, -1)

    def concerns(self) -> Tensor | None:
        """Return winner and class of each coefficient of a pair."""
        if not self.by_class:
            return None
        winners, classes, groups = self.of_pair.shape
        first = torch.arange(winners) if winners > 1 else torch.tensor([-1])
        own = torch.cartesian_prod(first, torch.arange(classes)).repeat_interleave(groups, dim=0)
        return nn.functional.pad(own, (0, 0, self.num_parameters() - len(own), 0), value=-1)[None]

    def likelihood(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        """Return the summed NLL and its gradient, by looking up or by pieces."""
        parts = self._parts(theta)
        rows = torch.cat([part @ spread.T for part, spread in parts])
        kernel = conic_numba if block.features.device.type == "cpu" else conic_torch
        value, gradient = kernel.likelihood(*block[:3], rows, self.num_classes, self.hat_counts)
        back = gradient.split([len(part) for part, _ in parts])
        return value, torch.cat([(g @ spread).flatten() for g, (_, spread) in zip(back, parts, strict=True)])

    def hessian(self, block: Block, theta: Tensor, total: float) -> Tensor:
        """Return the Hessian of the summed NLL, divided by `total`."""
        if block.features.device.type != "cpu":
            return super().hessian(block, theta, total)
        parts = self._parts(theta)
        rows, (nodes, *of_class) = [part @ spread.T for part, spread in parts], [spread for _, spread in parts]
        values = torch.cat(rows), self.num_classes, self.hat_counts
        bend = conic_numba.hessian(block.features, block.weight, *values, *of_class)
        for _ in range(2):  # from both sides
            shared, own = bend.T.tensor_split([rows[0].numel()], dim=1)
            bend = torch.cat([(shared.reshape(-1, len(nodes)) @ nodes).reshape(len(shared), -1), own], dim=1)
        return bend / total

    def _parts(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return coefficients ``(rows, ramps or groups)`` and the map to values at nodes: shared ones, of classes."""
        widths = torch.cat([self.knots.diff(), self.knots.new_ones(1)])  # the last piece is open
        nodes = torch.ones(self.ramps + 1, self.ramps).to(widths).tril(-1) * widths
        shared = (1 + sum(self.hat_counts)) * self.ramps
        parts = [(theta[:shared].reshape(-1, self.ramps), nodes)]
        if self.by_class:
            groups = -(-self.ramps // GROUP)
            members = torch.eye(groups).repeat_interleave(GROUP, dim=0)[: self.ramps]
            parts.append((theta[shared:].reshape(-1, groups), nodes @ members.to(widths)))
        return parts

    def _design(self, block: Block) -> Tensor:
        """Return minus every ramp of every row at every class, ``(C, P, n)``: what the loops look up, written out."""
        classes, count = self.num_classes, block.target.numel()
        where, around = block.features[:classes].double(), block.features[classes:].double()
        below = (where >= 0).double()
        nodes = hat_shares(where.clamp(min=0), self.ramps + 1) * below  # (nodes, C, n)
        spreads = [spread.to(nodes) for _, spread in self._parts(self.theta()[0].detach())]
        hats = [hat_shares(row, number) for row, number in zip(around, self.hat_counts, strict=True)]
        shares = torch.cat([nodes.new_ones(1, count), *hats])
        ramps = torch.einsum("mkn,mj->jkn", nodes, spreads[0])
        columns = [torch.einsum("rn,jkn->krjn", shares, ramps).flatten(1, 2)]
        if self.by_class:
            groups, own = torch.einsum("mkn,mj->jkn", nodes, spreads[1]), torch.eye(classes).to(nodes)
            first = 1 - below if len(self.of_pair) > 1 else shares[:1]
            columns.append(torch.einsum("in,kc,jkn->kicjn", first, own, groups).flatten(1, 3))
        return -torch.cat(columns, dim=1)

    def _own_rows(self, context: Tensor | None, count: int) -> Tensor:
        """Return the rows of ``(all contexts, n)`` that are used."""
        if context is None or not self.contexts:
            return torch.zeros(0, count, dtype=torch.float64, device=self.knots.device)
        return context[[CONTEXTS.index(name) for name in self.contexts]]


def some_voxels(voxels: Iterable[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Return logits and contexts of every n-th voxel, such that they take little room, in float64."""
    step, kept, size = 1, list[tuple[Tensor, Tensor]](), 0
    for logits, context in voxels:
        around = logits[:0] if context is None else context
        kept.append((logits[:, ::step], around[:, ::step]))
        size += kept[-1][0].numel()
        while size > MOST_VALUES:
            step, size = 2 * step, size // 2
            kept = [(one[:, ::2], other[:, ::2]) for one, other in kept]
        kept[-1] = kept[-1][0].double().cpu(), kept[-1][1].double().cpu()  # of the voxels themselves nothing stays
    one, other = (torch.cat(parts, dim=1) for parts in zip(*kept, strict=True))
    return one, other


def quantile_knots(values: Tensor, shares: Sequence[float], above: float) -> Tensor:
    """Return quantiles of values, each visibly larger than the one before, the first than `above`.

    >>> quantile_knots(torch.tensor([0.0, 1.0, 1.0, 1.0]), [0.0, 0.5, 1.0], -1.0)
    tensor([0.0000, 1.0000, 1.0010], dtype=torch.float64)
    """
    found = np.quantile(values.numpy() if len(values) else np.zeros(1), shares)
    spread: list[float] = []
    for value in found:
        spread.append(max(float(value), (spread[-1] if spread else above) + 1e-3))
    return torch.tensor(spread, dtype=torch.float64)


def positions(values: Tensor, knots: Tensor) -> Tensor:
    """Return knot number plus the share of the way to the next; beyond the last knot, plus the distance.

    >>> positions(torch.tensor([0.5, 3.0, 9.0]), torch.tensor([0.0, 1.0, 5.0]))
    tensor([0.5000, 1.5000, 6.0000])
    """
    left = torch.searchsorted(knots, values.contiguous(), right=True).clamp(1, len(knots)) - 1
    widths = torch.cat([knots.diff(), knots.new_ones(1)])
    return left + (values - knots[left]) / widths[left]


def hat_shares(where: Tensor, count: int) -> Tensor:
    """Return the share of each node in values at these positions, ``(count, *where)``; linear beyond the last.

    >>> hat_shares(torch.tensor([0.5, 2.0]), 3)
    tensor([[0.5000, 0.0000],
            [0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    left = where.floor().clamp(0, count - 2)
    rest = where - left
    number = torch.arange(count, device=where.device).reshape(-1, *[1] * where.ndim)
    return (number == left) * (1 - rest) + (number == left + 1) * rest
