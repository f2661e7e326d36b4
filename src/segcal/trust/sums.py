r"""What is kept of a case: sums over its voxels, of all structures at once, in the one pass of :mod:`evaluation.slabs`.

With the calibrated probability :math:`p_v` of a structure at voxel v and its mask :math:`m_v` (the decision that stays
where no other class is strictly above it):

.. math:: \sum m, \quad \sum p, \quad \sum p m, \quad \sum p (1 - p),

and for the case the entropy, the confidence and the members' disagreement. These are made without labels, over every
voxel that was predicted, so that a labelled case and a new one are the same draw. Labels :math:`y_v` add
:math:`\sum y`, :math:`\sum m y` and :math:`\sum m` over the voxels that have one, and three histograms over the
thresholds of :data:`THRESHOLDS`: of the voxels of a structure by its probability and by the probability of all classes
above it and its own, and of all voxels by its probability. Every promise of :mod:`segcal.trust.guarantees` is read from
these. No image content is kept.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.evaluation.slabs import Slab, score_slabs
from segcal.fitting.reference import ReferenceCase, written_numbers, written_sparse
from segcal.numerics import decided, winner
from segcal.resample import defined_mean
from segcal.types import IGNORED

Floats = NDArray[np.float64]

# Even steps of the log odds from 1e-4 to 1 - 1e-4, with 0.5 in the middle.
THRESHOLDS: Floats = 1 / (1 + np.exp(-np.linspace(-math.log(9999), math.log(9999), 65)))
BINS = len(THRESHOLDS) + 1
# Confidences between which decisions are told apart by :func:`segcal.adapt`.
CONFIDENT = (0.7, 0.95)
# Logits of one step through a case: a dozen numbers are made of each.
STEP_VALUES = 1 << 22
# Cubic millimetres in a millilitre.
ML = 1000.0


@dataclass
class TruthSums:
    """What labels say of each class: arrays ``(classes,)``, and histograms ``(classes, BINS)``.

    Attributes:
        truth: voxels of the class.
        found: those of them in its mask.
        counted: voxels of its mask that have a label.
        by_prob: voxels of the class, by how many thresholds its probability reaches.
        by_rank: voxels of the class, by how many thresholds the probability of it and all above it exceeds.
        all_by_prob: all voxels that have a label, by how many thresholds the probability of the class reaches.
        joint: voxels of the class, by :attr:`CaseSums.decided`.
    """

    truth: Floats
    found: Floats
    counted: Floats
    by_prob: Floats
    by_rank: Floats
    all_by_prob: Floats
    joint: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def none(cls, classes: int) -> "TruthSums":
        """Return zeros."""
        truth, found, counted = np.zeros((3, classes))
        by_prob, by_rank, every = np.zeros((3, classes, BINS))
        joint = np.zeros((classes, classes * (len(CONFIDENT) + 1)))
        return cls(truth, found, counted, by_prob, by_rank, every, joint)


@dataclass
class CaseSums:
    """One case.

    Attributes:
        case: its id.
        group: what it belongs to; a group is one draw.
        voxels: how many were predicted.
        size: of one voxel in `unit`; 1 where the spacing is not known.
        unit: "ml", or "voxels" where the spacing is not known and of pictures, which have no volume.
        mask: voxels of each class in the mask, ``(classes,)`` like the following.
        prob: the sum of its probability.
        hit: that of the voxels in its mask.
        spread: the sum of p (1 - p).
        edge: voxels of its mask that touch another class.
        edge_prob: the sum of its probability over these.
        entropy: the sum over voxels, in nats.
        disagreement: the sum over voxels, in nats; None where members are not known.
        agreement: the mean Dice of all pairs of members, by class; NaN where no two members have it; None for one.
        truth: what labels say; None without labels.
        decided: voxels of each mask by confidence (:data:`CONFIDENT`), ``(classes * 3,)``.
        beside: the mean number of the classes that touch its mask; NaN where none does; None where it is not known.
    """

    case: str
    group: str
    voxels: int
    size: float
    unit: str
    mask: Floats
    prob: Floats
    hit: Floats
    spread: Floats
    edge: Floats
    edge_prob: Floats
    entropy: float = 0.0
    disagreement: float | None = None
    agreement: Floats | None = None
    truth: TruthSums | None = None
    decided: Floats = field(default_factory=lambda: np.zeros(0))
    beside: Floats | None = None


def sum_case(calibrator: Calibrator, case: Case, members: Iterable[Tensor] = ()) -> CaseSums:
    """Return the sums of a case, with those of its labels if it has any.

    Args:
        calibrator: on any device.
        case: as it was read, with what the calibrator sees beside logits.
        members: the logits of one member after the other; none where they are not known.
    """
    classes = calibrator.num_classes
    size, unit = voxel_size(case.spacing)
    a, b, c, d, e, f = np.zeros((6, classes))
    found = winner(case.logits, axis=0)
    sums = CaseSums(case.id, case.group or f"\0{case.id}", 0, size, unit, a, b, c, d, e, f)
    sums.decided = np.zeros(classes * (len(CONFIDENT) + 1))
    sums.beside = classes_beside(found, classes, case.mask)
    sums.truth = None if case.labels is None else TruthSums.none(classes)
    edge = touching(found)
    for slab in score_slabs(calibrator, case, values=STEP_VALUES):
        _add(sums, slab, case, edge)
    if case.disagreement is not None:
        kept = case.disagreement if case.mask is None else case.disagreement[case.mask]
        sums.disagreement = float(kept.double().sum())
    sums.agreement = agreement_of(_decided(members, case.mask), classes)
    return sums


def reference_case(sums: CaseSums) -> ReferenceCase:
    """Return what is kept of a case; `SumTable` reads the same digits of a new case as of a remembered one."""
    nothing = np.full_like(sums.mask, np.nan)
    truth = sums.truth
    labelled = [nothing] * 3 if truth is None else [truth.truth, truth.found, truth.counted]
    agreement, beside = (nothing if each is None else each for each in (sums.agreement, sums.beside))
    columns = [sums.mask, sums.prob, sums.hit, sums.spread, sums.edge, sums.edge_prob, agreement, *labelled, beside]
    disagreement = np.nan if sums.disagreement is None else sums.disagreement
    alone = written_numbers([sums.voxels, sums.size, sums.entropy, disagreement])
    numbers = f"{alone} {written_numbers(np.stack(columns, 1))}"
    return ReferenceCase(sums.case, sums.group, numbers, "" if truth is None else written_sparse(truth.joint))


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


def agreement_of(masks: Iterable[Tensor], classes: int) -> Floats | None:
    """Return the mean Dice of all pairs of maps of classes, by class; NaN where no map has it, None for one map."""
    maps = list(masks)
    if len(maps) < 2:
        return None
    found = []
    for one, other in combinations(maps, 2):
        both = torch.bincount(one.long() * classes + other.long(), minlength=classes * classes).reshape(classes, -1)
        total = (both.sum(0) + both.sum(1)).double().numpy()
        with np.errstate(invalid="ignore"):
            found.append(2 * both.diagonal().double().numpy() / total)
    means: Floats = defined_mean(np.array(found), axis=0)
    return means


def _decided(members: Iterable[Tensor], mask: Tensor | None) -> Iterator[Tensor]:
    for member in members:
        classes = winner(member, axis=0).to(torch.int32)
        yield (classes if mask is None else classes[mask]).reshape(-1)


def _add(sums: CaseSums, slab: Slab, case: Case, edge: Tensor) -> None:
    """Add a slab to the sums of its case."""
    classes = slab.scores.shape[1]
    logits, scores = (each[0].reshape(classes, -1) for each in (slab.logits, slab.scores))
    labels = None if case.labels is None else case.labels[slab.where].reshape(-1)
    on_edge = edge[slab.where].reshape(-1)
    if case.mask is not None:
        kept = case.mask[slab.where].reshape(-1)
        logits, scores, on_edge = logits[:, kept], scores[:, kept], on_edge[kept]
        labels = None if labels is None else labels[kept]
    probs, mask = torch.softmax(scores, dim=0), decided(winner(logits, axis=0), scores)
    own = probs.gather(0, mask[None])[0].double()
    on_edge = on_edge.to(mask.device)
    sums.voxels += mask.numel()
    sums.mask += _counts(mask, classes)
    sums.prob += probs.sum(1, dtype=torch.float64).cpu().numpy()
    sums.hit += _counts(mask, classes, own)
    sums.spread += (probs * (1 - probs)).sum(1, dtype=torch.float64).cpu().numpy()
    sums.edge += _counts(mask[on_edge], classes)
    sums.edge_prob += _counts(mask[on_edge], classes, own[on_edge])
    kind = mask * (len(CONFIDENT) + 1) + torch.bucketize(own, own.new_tensor(CONFIDENT))
    sums.decided += _counts(kind, len(sums.decided))
    sums.entropy += float(torch.special.entr(probs).sum(dtype=torch.float64))
    if labels is not None and sums.truth is not None:
        _add_truth(sums.truth, probs, mask, kind, labels.to(mask.device))


def _add_truth(sums: TruthSums, probs: Tensor, mask: Tensor, kind: Tensor, labels: Tensor) -> None:
    known = labels != IGNORED
    if not bool(known.all()):
        probs, mask, kind, labels = probs[:, known], mask[known], kind[known], labels[known]
    classes = len(probs)
    kinds = sums.joint.shape[1]
    sums.joint += _counts(labels * kinds + kind, classes * kinds).reshape(classes, kinds)
    edges = torch.from_numpy(THRESHOLDS).to(probs)
    own = probs.gather(0, labels[None])
    above = torch.where(probs > own, probs, torch.zeros((), dtype=probs.dtype, device=probs.device)).sum(0) + own[0]
    sums.truth += _counts(labels, classes)
    sums.found += _counts(labels[mask == labels], classes)
    sums.counted += _counts(mask, classes)
    for table, reached in ((sums.by_prob, _reached(own[0], edges)), (sums.by_rank, torch.bucketize(above, edges))):
        table += _counts(labels * BINS + reached, classes * BINS).reshape(classes, BINS)
    for number, each in enumerate(probs):
        sums.all_by_prob[number] += _counts(_reached(each, edges), BINS)


def _reached(probs: Tensor, edges: Tensor) -> Tensor:
    """Return how many thresholds each probability reaches."""
    return torch.bucketize(probs.contiguous(), edges, right=True)


def _counts(numbers: Tensor, size: int, weights: Tensor | None = None) -> Floats:
    return torch.bincount(numbers, weights, minlength=size).double().cpu().numpy()
