r"""Calibration of regions: one calibrator of two classes for each, and nesting kept.

Region r has the classes off and on with the logits :math:`(0, z_r)`; its calibrator gives scores, and their difference
is the new log-odds :math:`s_r`. Where every calibrator keeps its decision, :math:`s_r > 0` exactly where
:math:`z_r > 0`, and masks and label maps stay as they are, bit by bit.

**Nesting.** Let region i lie in region o, by their labels. Where :math:`z_i \le z_o` held, :math:`s_i \le s_o` is made
to hold. Two log-odds in the wrong order are replaced by their mean, pair after pair, a few times over. What is left by
then, next to nothing, is cut, inner to outer. The mean is the projection, in the divergence of the log-likelihood, onto
probabilities that are nested. Labels are nested, so it never raises the sum of the two regions' losses at a voxel:

.. math:: \ell(y, p) \ge \ell(y, q) + D(q \,\|\, p), \qquad
          q = \arg\min_{q_i \le q_o} D(q \,\|\, p) \;\Rightarrow\; \mathrm{logit}\, q = \tfrac12 (s_i + s_o) .

Nor can it move a decision. Both log-odds lie on one side of 0, because an inner region that was on has an outer one
that was on. A calibrator that may move decisions promises nothing about nesting either, and is left as it is.

The result is :math:`\log p_r = \log \sigma(s_r)`, which is exact for probabilities near 0 and near 1. Rounding could
put a probability next to 1/2 on the other side. It is kept two and four units of the type's rounding away from it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from segcal.calibrators.base import Calibrator, Holder, check_out
from segcal.checks import check_forward
from segcal.numerics import compute_dtype
from segcal.regions import Regions
from segcal.types import Context, Logits, LogProbs

# How often all pairs of regions are looked at: each time less than a quarter is left of what three in a row violate.
PASSES = 8


class PerRegion(Holder):
    """Calibrate each region by itself, and keep regions nested where they were.

    Args:
        regions: what the outputs are.
        inner: a calibrator of two classes for each.
    """

    regions: Regions

    def __init__(self, regions: Regions, inner: Sequence[Calibrator]) -> None:
        super().__init__(max(2, len(regions)), inner)
        self.num_classes = len(regions)
        self.regions = regions
        self.inner = nn.ModuleList(inner)
        self.name = ", ".join(dict.fromkeys(each.name for each in inner))
        self.title = ", ".join(dict.fromkeys(each.title or each.name for each in inner)) + ", per region"
        self.preserves = "argmax" if all(each.preserves for each in inner) else None

    @property
    def each(self) -> dict[str, Calibrator]:
        """The calibrator of each region, by name."""
        return dict(zip(self.regions.names, self.held, strict=True))

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the log-odds of each region, ``(batch, regions, *space)``; it is on where they are positive."""
        context = Context() if context is None else context
        found = []
        for number, calibrator in enumerate(self.each.values()):
            own = logits[:, number]
            pair = calibrator.scores(torch.stack([torch.zeros_like(own), own], dim=1), _of_region(context, number))
            found.append(pair[:, 1] - pair[:, 0])
        if self.preserves is not None:
            found = [_beside_zero(odds, logits[:, number]) for number, odds in enumerate(found)]
        odds = torch.stack(found, dim=1)
        return odds if self.preserves is None else self._nested(odds, logits)

    def _nested(self, odds: Tensor, logits: Logits) -> Tensor:
        """Return log-odds that are nested where the logits are; few voxels have to be touched."""
        pairs = self.regions.nested
        if not pairs or torch.compiler.is_compiling():
            return torch.stack(self._projected(list(odds.unbind(1)), list(logits.unbind(1))), dim=1)
        turned = [(odds[:, i] > odds[:, o]) & (logits[:, i] <= logits[:, o]) for i, o in pairs]
        where = torch.stack(turned).any(0)
        if not bool(where.any()):
            return odds
        rows = [list(values.movedim(1, -1)[where].unbind(-1)) for values in (odds, logits)]
        found = odds.movedim(1, -1).clone()
        found[where] = torch.stack(self._projected(*rows), dim=-1)
        return found.movedim(-1, 1)

    def _projected(self, odds: list[Tensor], logits: list[Tensor]) -> list[Tensor]:
        held = {(i, o): logits[i] <= logits[o] for i, o in self.regions.nested}
        for _ in range(PASSES if held else 0):
            for (i, o), were in held.items():
                middle, turned = (odds[i] + odds[o]) / 2, were & (odds[i] > odds[o])
                odds[i], odds[o] = (torch.where(turned, middle, odds[number]) for number in (i, o))
        for (i, o), were in held.items():  # outer ones first, so that what is cut to is final
            odds[i] = torch.where(were, torch.minimum(odds[i], odds[o]), odds[i])
        return odds

    def forward(self, logits: Logits, context: Context | None = None, *, out: Tensor | None = None) -> LogProbs:
        """Return log p of each region, in the shape of `logits`; half types come back as float32, or as `out`."""
        check_forward(logits, self.num_classes)
        if out is not None:
            check_out(out, logits)
        wide = logits.to(compute_dtype(logits.dtype))
        odds = self.scores(wide, context)
        # Exporters write a log of a sigmoid, which is minus infinity where the sigmoid is too small for its type.
        log_probs = -softplus(-odds) if torch.compiler.is_compiling() else logsigmoid(odds)
        log_probs = log_probs if out is None else log_probs.to(out.dtype)
        if self.preserves is not None:
            half, unit = -math.log(2), torch.finfo(log_probs.dtype).eps
            low, high = log_probs.clamp(max=half - 2 * unit), log_probs.clamp(min=half + 4 * unit)
            log_probs = torch.where(wide > 0, high, low)
        return log_probs if out is None else out.copy_(log_probs)

    def num_identifiable(self) -> int:
        """Return those of all regions."""
        return sum(each.num_identifiable() for each in self.held)

    def __repr__(self) -> str:
        kept = "keeps masks, label maps and nesting" if self.preserves else "may change masks"
        names = ", ".join(f"{region} ({each.name})" for region, each in self.each.items())
        return f"{self.num_classes} regions, {names}: {kept}; {self.num_parameters():,} parameters"


def _beside_zero(odds: Tensor, logits: Tensor) -> Tensor:
    """Return log-odds that are positive exactly where the logits are, where rounding made them 0."""
    return torch.where((logits > 0) & (odds == 0), torch.finfo(odds.dtype).tiny, odds)


def _of_region(context: Context, number: int) -> Context:
    disagreement, mean_gap = (None if x is None else x[:, number] for x in (context.disagreement, context.mean_gap))
    return context._replace(disagreement=disagreement, mean_gap=mean_gap)
