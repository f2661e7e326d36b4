r"""The evidence behind what belongs to single classes, counted in groups: voxels of one patient say the same again.

A variable of a convex calibrator may speak of one *winner*, of one *label*, or of both
(:meth:`~segcal.calibrators.convex.ConvexCalibrator.concerns`). Of :math:`G` groups, :math:`G_p` have voxels with that
winner and voxels with that label. These may be different voxels, since it is evidence too if the two never meet. The
distance of variable p from temperature scaling is weighted by

.. math:: f_p = \frac{G}{G_p} \max\Bigl(1, \frac{c}{G s}\Bigr), \qquad
          R = (\theta - \theta_T)^\top F^{1/2} Q F^{1/2} (\theta - \theta_T), \quad F = \mathrm{diag} f ,

where Q is the penalty of strength s that the calibrator declares: still a convex quadratic, zero at temperature
scaling. However weak the penalty that held-out cases choose, what belongs to a class weighs at least :math:`c / G_p`
(:data:`PRIOR`). Cases of one site agree on much that does not hold at the next. Of fewer than `FitConfig.evidence`
groups (or than all, where there are fewer) a variable keeps its value at temperature scaling exactly. Both hold where
the penalty pulls to a temperature, which it does wherever its strength is chosen.

The *influence* of a group on the temperature is its change without the group. It is one Newton step from the optimum
:math:`\beta` of all, with sums of derivatives :math:`g, h` over the voxels of the group and H over all,
:math:`\beta_{-g} = \beta + g / (H - h)`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.convex import SMALLEST_SCALE, ConvexCalibrator
from segcal.cases.base import Cases
from segcal.fitting.division import group_names
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.kernels.affine_numba import temperature_terms
from segcal.numerics import winner

# What a variable of a class weighs at least, times the groups behind it. Set on cardiac patients of one or two diseases
# and tested on the others: at a thirtieth of it a failed case lost 0.1 nats, and at ten times most of the gain is gone.
PRIOR = 0.03
# The change of the temperature by which a group is named that decides it.
DECISIVE = 0.2
# A group that failed has a mean NLL of this many times the upper quartile over groups.
FAILED, QUARTILE = 8.0, 75


@dataclass(frozen=True)
class FitEvidence:
    """The evidence behind a fit.

    Attributes:
        groups: how many groups of cases there were.
        class_groups: in how many of them each class is a label of a voxel that was drawn.
        class_voxels: how many voxels of all cases have it, about.
        sites: how many groups each declared site has, or each cluster that a choice made; empty if there are none.
        declared: whether the sites were declared.
        weights: what groups count that failed and count less (:mod:`segcal.fitting.outliers`), by name.
        influence: by what share the temperature would be another without a group, for those that move it by a fifth.
        failed: how many times the upper quartile the NLL of a group is that failed and counts in full.
    """

    groups: int
    class_groups: tuple[int, ...]
    class_voxels: tuple[int, ...]
    sites: dict[str, int] = field(default_factory=dict)
    declared: bool = False
    weights: dict[str, float] = field(default_factory=dict)
    influence: dict[str, float] = field(default_factory=dict)
    failed: dict[str, float] = field(default_factory=dict)


class Shrinkage(NamedTuple):
    """The number of groups behind each variable, and which variables stay where the penalty leads, ``(E, P)``.

    Of what belongs to no class `behind` is infinite. `pairs` has winner, label and groups of what has fewer groups than
    there are; -1 is any.
    """

    behind: Tensor
    frozen: Tensor
    pairs: tuple[tuple[int, int, int], ...]
    groups: int

    def factors(self, strength: float) -> Tensor:
        """Return how much more a penalty of this strength weighs for each variable."""
        return torch.where(self.behind < math.inf, max(self.groups, PRIOR / strength) / self.behind, 1.0)


def shrinkage(calibrator: ConvexCalibrator, source: VoxelSource, cases: Cases, least: int) -> Shrinkage | None:
    """Return what the groups behind each variable make of the penalty; None where it stays as it is."""
    concerns = calibrator.concerns()
    if concerns is None or not least:
        return None
    table, groups = pair_table(source, cases)
    found = table[concerns[..., 0], concerns[..., 1]].double()
    own = (concerns >= 0).any(-1)
    few = concerns[own & (found < groups)].unique(dim=0).tolist()
    pairs = tuple((first, second, int(table[first, second])) for first, second in few)
    behind = torch.where(own, found.clamp(min=1), math.inf)
    return Shrinkage(behind, own & (found < min(least, groups)), pairs, groups)


def pair_table(source: VoxelSource, cases: Cases) -> tuple[Tensor, int]:
    """Return how many groups have a winner and a label, ``(C + 1, C + 1)`` with any of them last; and of how many."""
    seen: dict[str, Tensor] = {}
    for case_id, own in source.by_case(_present):
        group = group_names(cases, [case_id])[0]
        seen[group] = seen[group] | own if group in seen else own
    winners, labels = torch.stack(list(seen.values()), dim=1).double()
    return (winners.T @ labels).long(), len(seen)


def _present(case_id: str, batches: Iterable[Voxels]) -> Tensor:
    """Return which winners and which labels a case has, ``(2, C + 1)``, the last always."""
    found = torch.zeros(2, 1, dtype=torch.bool)
    for voxels in batches:
        size = len(voxels.logits) + 1
        rows = [torch.bincount(each.long(), minlength=size) > 0 for each in (winner(voxels.logits, 0), voxels.labels)]
        found = found | torch.stack(rows).cpu()
    found[:, -1] = True
    return found


def collect(
    source: VoxelSource, cases: Cases, inverse_temperature: float | None, weights: Mapping[str, float]
) -> FitEvidence:
    """Return the evidence per class, and the groups that decide the temperature, if there is one.

    `weights` are those of cases, which the source has too.
    """
    sums: dict[str, Tensor] = {}
    less: dict[str, float] = {}
    for case_id, own in source.by_case(partial(_case_sums, inverse_temperature)):
        group = group_names(cases, [case_id])[0].lstrip("\0")
        if case_id in weights:
            less[group] = weights[case_id]
            own[:-3] /= weights[case_id]
        sums[group] = sums[group] + own if group in sums else own
    table = torch.stack(list(sums.values()))
    loss, slope, bend = table[:, -3:].T
    rest = bend.sum() - bend
    voxels = table[:, :-3]
    influence, failed = {}, {}
    if inverse_temperature is not None and len(sums) > 1:
        without = inverse_temperature + torch.where(rest > 0, slope / rest, 0.0)
        change = inverse_temperature / without.clamp(min=SMALLEST_SCALE) - 1
        influence = {name: one for name, one in zip(sums, change.tolist(), strict=True) if abs(one) > DECISIVE}
        means = (loss / voxels.sum(1)).numpy()
        times = (means / max(float(np.percentile(means, QUARTILE)), 1e-300)).tolist()
        failed = {name: one for name, one in zip(sums, times, strict=True) if one >= FAILED and name not in less}
    counts = tuple((voxels > 0).sum(0).tolist()), tuple(voxels.sum(0).round().long().tolist())
    return FitEvidence(len(sums), *counts, weights=less, influence=influence, failed=failed)


def _case_sums(inverse_temperature: float | None, case_id: str, batches: Iterable[Voxels]) -> Tensor:
    """Return the weight of each label in a case, its NLL, and the first and second derivative of that."""
    total: Tensor | float = 0.0
    for voxels in batches:
        counts = torch.bincount(voxels.labels.long(), voxels.weight.double(), minlength=len(voxels.logits))
        terms = [0.0, 0.0, 0.0]
        if inverse_temperature is not None:
            logits, labels, weight = (x.contiguous() for x in voxels[:3] if x is not None)
            terms = list(temperature_terms(logits, labels, weight, inverse_temperature))
        total = total + torch.cat([counts, torch.tensor(terms, dtype=torch.float64)])
    assert isinstance(total, Tensor)
    return total
