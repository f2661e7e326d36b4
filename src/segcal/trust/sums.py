r"""Sums over the voxels of a case, of all structures at once, in the one pass of :mod:`evaluation.slabs`.

With the calibrated probability :math:`p_v` of a structure at voxel v and its mask :math:`m_v` (the decision that stays
where no other class is strictly above it):

.. math:: \sum m, \quad \sum p, \quad \sum p m, \quad \sum p (1 - p),

and for the case the entropy, the confidence and the members' disagreement. These are made without labels, over every
voxel that was predicted, so that a labelled case and a new one are treated alike. Labels :math:`y_v` add
:math:`\sum y`, :math:`\sum m y` and :math:`\sum m` over the voxels that have one, and three histograms over the
thresholds of :data:`THRESHOLDS`. Two are of the voxels of a structure: by its probability, and by that of all classes
above it and its own. The third is of all voxels by its probability. Every promise of :mod:`segcal.trust.guarantees` is
read from these. No image content is kept.

A region has the probability :math:`\sigma(s)` and the mask :math:`s > 0`, where s are its calibrated log-odds after
nesting. It excludes no other: there is no rank among them, no kind of decision, no edge and no class beside it.
"""

import copy
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.evaluation.slabs import Slab, score_slabs
from segcal.fitting.reference import ITSELF, OF_CASE, OF_CLASS, ReferenceCase, written_numbers, written_sparse
from segcal.kernels.trust_numba import VoxelSums, count_alike, sum_voxels
from segcal.numerics import winner
from segcal.resample import defined_mean
from segcal.types import IGNORED

Floats = NDArray[np.float64]
# The label of each rater in each pattern of the votes of a case, and the sums of each over slabs.
Rated: TypeAlias = tuple[np.ndarray, list[list[VoxelSums]]]

# Even steps of the log odds from 1e-4 to 1 - 1e-4, with 0.5 in the middle.
THRESHOLDS: Floats = 1 / (1 + np.exp(-np.linspace(-math.log(9999), math.log(9999), 65)))
BINS = len(THRESHOLDS) + 1
# Confidences between which decisions are told apart by :func:`segcal.adapt`.
CONFIDENT = (0.7, 0.95)
# Logits of one step through a case: a dozen numbers are made of each.
STEP_VALUES = 1 << 22
# Cubic millimetres in a millilitre.
ML = 1000.0
VOXELS, ENTROPY, DISAGREEMENT = (OF_CASE.index(name) for name in ("voxels", "entropy", "disagreement"))
AGREEMENT, BESIDE = (OF_CLASS.index(name) for name in ("agreement", "beside"))
# Rows of :attr:`CaseSums.columns`: sums without labels, those of a region among them, and sums with labels.
OF_VOXELS, OF_REGIONS, OF_LABELS = (
    slice(OF_CLASS.index(first), OF_CLASS.index(last) + 1)
    for first, last in (("mask", "edge_prob"), ("mask", "spread"), ("truth", "counted"))
)


@dataclass
class CaseSums:
    """One case.

    Attributes:
        case: its id.
        group: what it belongs to; a group counts once.
        unit: of the size of a voxel: "ml", or "voxels" where the spacing is not known and of 2-D images, which have no
            volume.
        alone: the numbers of the case, :data:`segcal.fitting.reference.OF_CASE`. Entropy and disagreement are sums over
            voxels, in nats; NaN is not known.
        columns: one row of ``(classes,)`` for each of :data:`segcal.fitting.reference.OF_CLASS`: voxels of the `mask`,
            the sum of the probability (`prob`) and that over the mask (`hit`), the sum of p (1 - p) (`spread`), voxels
            of the mask that touch another class (`edge`) and the sum of the probability over these, the mean Dice of
            all pairs of members (`agreement`); voxels that have the label (`truth`), those of them in the mask
            (`found`), voxels of the mask that have a label (`counted`); the mean number of the classes that touch the
            mask (`beside`). NaN is not known.
        decided: voxels of each mask by confidence (:data:`CONFIDENT`), ``(classes * 3,)``.
        joint: voxels of each label by the same, ``(classes, classes * 3)``.
        histograms: three of ``(classes, BINS)``; None without labels. Voxels of the class, by how many thresholds its
            probability reaches; voxels of the class, by how many thresholds the probability of it and all above it
            exceeds; all voxels that have a label, by how many thresholds the probability of the class reaches.
    """

    case: str
    group: str
    unit: str
    alone: Floats
    columns: Floats
    decided: Floats
    joint: Floats
    histograms: Floats | None


def sum_raters(calibrator: Calibrator, case: Case, members: Iterable[Tensor] = ()) -> list[CaseSums]:
    """Return the sums of a case as each rater labelled it: voxels on which all agree are summed once."""
    if case.votes is None or case.votes.marks is None:
        return [sum_case(calibrator, case, members)]
    votes, marks = case.votes, case.votes.marks
    own = np.where(votes.agreed[:, None] == IGNORED, marks, IGNORED)[:, (marks >= 0).any(0)]
    more: list[list[VoxelSums]] = [[] for _ in own.T]
    base = sum_case(calibrator, replace(case, labels=votes.labels(votes.agreed)), members, (own, more))
    found = [copy.deepcopy(base) for _ in more]
    for one, parts in zip(found, more, strict=True):
        for part in parts:
            _add_labels(one, part)
    return found


def sum_case(
    calibrator: Calibrator, case: Case, members: Iterable[Tensor] = (), raters: Rated | None = None
) -> CaseSums:
    """Return the sums of a case, with those of its labels if it has any.

    Args:
        calibrator: on any device.
        case: as it was read, with what the calibrator sees beside logits.
        members: the classes that one member after the other decides; none where they are not known.
        raters: of several, where the sums of each go.
    """
    classes, kinds = calibrator.num_classes, len(CONFIDENT) + 1
    size, unit = voxel_size(case.spacing)
    columns = np.full((len(OF_CLASS), classes), np.nan)
    columns[OF_VOXELS] = 0
    joint, histograms = np.zeros((classes, classes * kinds)), None
    if case.labels is not None:
        columns[OF_LABELS], histograms = 0, np.zeros((3, classes, BINS))
    sums = CaseSums(
        case.id, case.group or f"\0{case.id}", unit, np.array([0, size, 0, np.nan]), columns,
        np.zeros(classes * kinds), joint, histograms,
    )  # fmt: skip
    slabs = score_slabs(calibrator, case, values=STEP_VALUES)
    if isinstance(calibrator, PerRegion):
        for slab in slabs:
            _add_regions(sums, slab, case, calibrator)
        return sums
    found = winner(case.logits, axis=0)
    edge = touching(found)
    for slab in slabs:
        _add(sums, slab, case, found, edge, raters)
    if case.disagreement is not None:
        kept = case.disagreement if case.mask is None else case.disagreement[case.mask]
        sums.alone[DISAGREEMENT] = float(kept.double().sum())
    columns[AGREEMENT] = agreement_of((_inside(each, case.mask) for each in members), classes)
    columns[BESIDE] = classes_beside(found, classes, case.mask)
    return sums


def reference_case(sums: CaseSums, fold: int = ITSELF) -> ReferenceCase:
    """Return what is kept of a case; `SumTable` reads the same digits of a new case as of a remembered one."""
    numbers = written_numbers(np.concatenate([sums.alone, sums.columns.T.ravel()]))
    return ReferenceCase(sums.case, sums.group, numbers, written_sparse(sums.joint), fold)


def voxel_size(spacing: tuple[float, ...] | None) -> tuple[float, str]:
    """Return the size of a voxel and its unit, from a spacing in millimetres along three axes.

    >>> voxel_size((10.0, 2.0, 2.0)), voxel_size((5.0, 5.0)), voxel_size(None)
    ((0.04, 'ml'), (1.0, 'voxels'), (1.0, 'voxels'))
    """
    return (1.0, "voxels") if spacing is None or len(spacing) != 3 else (math.prod(spacing) / ML, "ml")


def one_unit(units: Collection[str]) -> str:
    """Return the unit in which the volumes of all cases can be given: "ml", or "voxels" where one case has no other."""
    return "ml" if set(units) == {"ml"} else "voxels"


def touching(classes: Tensor) -> Tensor:
    """Return where a map of classes has a neighbour of another class, along any axis.

    >>> touching(torch.tensor([0, 0, 1, 1, 1])).tolist()
    [False, True, True, False, False]
    """
    found = torch.zeros_like(classes, dtype=torch.bool)
    for axis, size in enumerate(classes.shape):
        other = classes.narrow(axis, 0, max(size - 1, 0)) != classes.narrow(axis, min(1, size), max(size - 1, 0))
        found.narrow(axis, 0, max(size - 1, 0)).logical_or_(other)
        found.narrow(axis, min(1, size), max(size - 1, 0)).logical_or_(other)
    return found


def classes_beside(found: Tensor, classes: int, mask: Tensor | None = None) -> Floats:
    """Return for each class the mean number of the classes that its voxels touch, along any axis; NaN without any.

    It tells classes of like sizes apart by what they lie beside, and so an order of classes from another.

    >>> classes_beside(torch.tensor([0, 0, 2, 1, 1]), 4).tolist()
    [2.0, 2.0, 0.5, nan]
    """
    pairs = np.zeros((classes, classes))
    for axis, size in enumerate(found.shape):
        length = max(size - 1, 0)
        one, other = found.narrow(axis, 0, length), found.narrow(axis, min(1, size), length)
        touch = one != other
        if mask is not None:
            touch = touch & mask.narrow(axis, 0, length) & mask.narrow(axis, min(1, size), length)
        pairs += _counts(one[touch] * classes + other[touch], classes * classes).reshape(classes, classes)
    pairs += pairs.T
    with np.errstate(invalid="ignore"):
        mean: Floats = pairs @ np.arange(classes) / pairs.sum(1)
    return mean


def agreement_of(masks: Iterable[Tensor], classes: int) -> Floats:
    """Return the mean Dice of all pairs of maps of classes, by class; NaN where no map has it, and for one map."""
    maps = [each.cpu().numpy() for each in masks]
    if len(maps) < 2:
        return np.full(classes, np.nan)
    voxels, both = count_alike(np.stack(maps), classes)
    with np.errstate(invalid="ignore"):
        found = [2 * both[pair] / (voxels[pair[0]] + voxels[pair[1]]) for pair in combinations(range(len(maps)), 2)]
    means: Floats = defined_mean(np.array(found), axis=0)
    return means


def _inside(classes: Tensor, mask: Tensor | None) -> Tensor:
    return (classes if mask is None else classes[mask]).reshape(-1)


def _add(sums: CaseSums, slab: Slab, case: Case, found: Tensor, edge: Tensor, raters: Rated | None) -> None:
    """Add a slab of classes to the sums of its case."""
    before, on_edge = found[slab.where].reshape(-1), edge[slab.where].reshape(-1)
    inside, labels = (None if each is None else each[slab.where].reshape(-1) for each in (case.mask, case.labels))
    scores = slab.scores[0].reshape(len(slab.scores[0]), -1)
    own = sum_voxels(scores, before, on_edge, inside, labels, THRESHOLDS, CONFIDENT)
    sums.alone[[VOXELS, ENTROPY]] += own.alone
    sums.columns[OF_VOXELS] += own.columns
    sums.decided += own.decided
    _add_labels(sums, own)
    if raters is None or case.votes is None:
        return
    code = case.votes.code[slab.where].reshape(-1).int()
    at = torch.from_numpy((raters[0] != IGNORED).any(1))[code]
    at = (at if inside is None else at & inside).nonzero().squeeze(1)
    parts = scores[:, at], before[at], on_edge[at], None
    for table, more in zip(torch.from_numpy(raters[0].T.copy()), raters[1], strict=True):
        more.append(sum_voxels(*parts, table[code[at]], THRESHOLDS, CONFIDENT))


def _add_labels(sums: CaseSums, own: VoxelSums) -> None:
    """Add what is known of voxels with labels, where labels are summed."""
    if sums.histograms is not None:
        sums.columns[OF_LABELS] += own.labelled
        sums.joint += own.joint
        sums.histograms += own.histograms


def _add_regions(sums: CaseSums, slab: Slab, case: Case, calibrator: PerRegion) -> None:
    """Add a slab of regions to the sums of its case."""
    odds = slab.scores[0].cpu()
    inside = torch.ones(odds.shape[1:], dtype=torch.bool) if case.mask is None else case.mask[slab.where]
    probs, masks = torch.sigmoid(odds)[:, inside], (odds > 0)[:, inside]
    sums.alone[VOXELS] += int(inside.sum())
    sums.columns[OF_REGIONS] += [_totals(each) for each in (masks, probs, probs * masks, probs * (1 - probs))]
    if case.labels is None or sums.histograms is None:
        return
    truths = calibrator.regions.truths(case.labels[slab.where][inside])
    known, there = truths != IGNORED, truths == 1
    sums.columns[OF_LABELS] += [_totals(each) for each in (there, there & masks, known & masks)]
    reached = _reached(probs, torch.from_numpy(THRESHOLDS).to(probs)) + BINS * torch.arange(len(probs))[:, None]
    for table, where in ((0, there), (2, known)):
        sums.histograms[table] += _counts(reached[where], reached.shape[0] * BINS).reshape(-1, BINS)


def _reached(probs: Tensor, edges: Tensor) -> Tensor:
    """Return how many thresholds each probability reaches."""
    return torch.bucketize(probs.contiguous(), edges, right=True)


def _counts(numbers: Tensor, size: int, weights: Tensor | None = None) -> Floats:
    return torch.bincount(numbers, weights, minlength=size).double().cpu().numpy()


def _totals(values: Tensor) -> Floats:
    return values.sum(1, dtype=torch.float64).cpu().numpy()
