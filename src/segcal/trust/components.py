r"""The objects of a case: connected components of the mask of each structure, and what labels say of them.

Voxels that share a face, an edge or a corner are connected (8 neighbours in 2-D images, 26 in volumes), in masks and in
labels. The mask is the decision that stays. With the calibrated probability p of the structure, an object O has its
size :math:`|O|`, the mean and the largest p in it, and the share of its voxels that have a neighbour outside of it
(`edge`). It also has whether it touches the `border` of the image, and the mean disagreement of the members where they
are known.

An object T of the labels overlaps O by :math:`|O \cap T| / |O \cup T|` or :math:`|O \cap T| / |O|`, over voxels that
have a label (:class:`segcal.fitting.object_reference.ObjectRule`). O is *real* if one of them overlaps it enough. Its
Dice and its true size are those of the T with the largest Dice. Objects of both sides are also paired one to one with
the largest sum of overlaps, as detection metrics ask for. A T without a partner is *missed*. A real O without one is a
further piece of an object, and neither right nor wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.cases.decision import decision_of
from segcal.evaluation.slabs import score_slabs
from segcal.fitting.object_reference import OF_OBJECT, ObjectRule
from segcal.numerics import decided, winner
from segcal.trust.sums import STEP_VALUES, Floats, voxel_size
from segcal.types import IGNORED

Ints = NDArray[np.int64]
Box = tuple[slice, ...]


class Components(NamedTuple):
    """A structure: `numbers` of the voxels of its objects in `box` (0: none), and their `probs`."""

    structure: int
    box: Box
    numbers: Ints
    probs: NDArray[np.float32]


@dataclass
class CaseObjects:
    """One case.

    Attributes:
        case: its id.
        group: what it belongs to; a group counts once.
        voxel: the size of a voxel in `unit`, "ml" or "voxels".
        table: one row per object, `OF_OBJECT`; NaN is not known.
        places: the same rows: centroid, first voxel and the one behind the last, along each axis of the array.
        structures: one row per structure, `OF_STRUCTURE`.
        affine: from an index of the array to millimetres (RAS), ``(3, axes + 1)``; None where no header has it.
    """

    case: str
    group: str
    voxel: float
    unit: str
    table: Floats
    places: Floats
    structures: Floats
    affine: Floats | None = None


def find_objects(calibrator: Calibrator, case: Case, structures: Sequence[int], rule: ObjectRule) -> CaseObjects:
    """Return the objects of a case, with what its labels say if it has any."""
    axes = case.logits.ndim - 1
    tables, spots, counts = [np.zeros((0, len(OF_OBJECT)))], [np.zeros((0, 3 * axes))], []
    for found in components(calibrator, case, structures, rule.smallest):
        table, place = _described(found, case)
        truths = missed = np.nan
        if case.labels is not None:
            table[:, -4:], truths, missed = _compared(found, case, calibrator, rule)
        tables.append(table)
        spots.append(place)
        counts.append([truths, missed])
    voxel, unit = voxel_size(case.spacing)
    group, table, places = case.group or f"\0{case.id}", np.concatenate(tables), np.concatenate(spots)
    return CaseObjects(case.id, group, voxel, unit, table, places, np.array(counts))


def components(
    calibrator: Calibrator, case: Case, structures: Sequence[int], smallest: int = 1
) -> Iterator[Components]:
    """Yield the objects of each structure; numbers begin at 1 and follow the order of voxels in the array."""
    space, regions = tuple(case.logits.shape[1:]), isinstance(calibrator, PerRegion)
    maps = (len(case.logits) if regions else 1, *space)
    probs, classes = torch.zeros(maps), torch.zeros(maps, dtype=torch.int32)
    for slab in score_slabs(calibrator, case, values=STEP_VALUES):
        scores = slab.scores[0]
        every = torch.sigmoid(scores) if regions else torch.softmax(scores, dim=0)
        own = (scores > 0).int() if regions else decided(winner(slab.logits[0], axis=0), scores).int()[None] + 1
        if case.mask is not None:
            seen = case.mask[slab.where].to(own.device)
            own = own * seen
        kept = every if regions else every.gather(0, (own.long() - 1).clamp(min=0))  # p of what was decided
        probs[slab.where], classes[slab.where] = kept.float().cpu(), own.cpu()
    masks, values = classes.numpy(), probs.numpy()
    boxes = [scipy.ndimage.find_objects(each) for each in masks]
    for structure in structures:
        place, number = (structure, 1) if regions else (0, structure + 1)
        found = boxes[place][number - 1] if len(boxes[place]) >= number else None
        box = tuple(  # with the voxels around it
            slice(max(0, side.start - 1), min(size, side.stop + 1))
            for side, size in zip(found or [slice(1, 0)] * len(space), space, strict=True)
        )
        numbers = _numbered(masks[place][box] == number)
        large = np.bincount(numbers.ravel(), minlength=1) >= smallest
        large[0] = False
        numbers = np.asarray((np.cumsum(large) * large)[numbers], np.int64)
        yield Components(structure, box, numbers, values[place][box])


def overlaps(ours: Ints, theirs: Ints, rule: ObjectRule) -> tuple[Floats, int]:
    """Return real, Dice, true size and matched of each object ``(objects, 4)``, and how many of the labels are missed.

    >>> overlaps(np.array([1, 1, 0, 2, 0]), np.array([1, 0, 0, 0, 2]), ObjectRule())
    (array([[1.        , 0.66666667, 1.        , 1.        ],
           [0.        , 0.        , 0.        , 0.        ]]), 1)
    """
    sizes, true = np.bincount(ours.ravel(), minlength=1), np.bincount(theirs.ravel(), minlength=1)
    both = (ours > 0) & (theirs > 0)
    pairs, shared = np.unique(ours[both] * len(true) + theirs[both], return_counts=True)
    one, other = pairs // len(true), pairs % len(true)
    dice = 2 * shared / (sizes[one] + true[other])
    measured = shared / (sizes[one] + true[other] - shared if rule.measure == "iou" else sizes[one])
    said, order, enough = np.zeros((len(sizes), 4)), np.argsort(dice, kind="stable"), measured >= rule.at
    said[one[order], 1], said[one[order], 2] = dice[order], true[other[order]]  # the largest is written last
    said[one[enough], 0] = 1
    rows, columns = np.unique(one[enough]), np.unique(other[enough])
    worth = np.zeros((len(rows), len(columns)))
    worth[np.searchsorted(rows, one[enough]), np.searchsorted(columns, other[enough])] = measured[enough]
    chosen = scipy.optimize.linear_sum_assignment(worth, maximize=True)
    partners = rows[chosen[0][worth[chosen] > 0]]
    said[partners, 3] = 1
    return said[1:], len(true) - 1 - len(partners)


def _described(found: Components, case: Case) -> tuple[Floats, Floats]:
    """Return the row of each object without what labels say, and its position."""
    numbers, start, space = found.numbers, [side.start for side in found.box], case.logits.shape[1:]
    every = np.arange(1, numbers.max(initial=0) + 1)
    table = np.full((len(every), len(OF_OBJECT)), np.nan)
    if not len(every):
        return table, np.zeros((0, 3 * len(space)))
    ends = np.array([[(side.start, side.stop) for side in box] for box in scipy.ndimage.find_objects(numbers)])
    ends += np.array(start)[:, None]
    surface = (numbers > 0) & ~scipy.ndimage.binary_erosion(numbers > 0, border_value=1)
    table[:, 0], table[:, 1] = found.structure, np.bincount(numbers.ravel())[1:]
    table[:, 2], table[:, 3] = (of(found.probs, numbers, every) for of in (scipy.ndimage.mean, scipy.ndimage.maximum))
    table[:, 4] = scipy.ndimage.mean(surface, numbers, every)
    table[:, 5] = (((ends[..., 0] == 0) | (ends[..., 1] == space)) & (np.array(space) > 1)).any(1)
    if case.disagreement is not None:
        whole = case.disagreement if case.disagreement.ndim == len(space) else case.disagreement[found.structure]
        table[:, 6] = scipy.ndimage.mean(whole[found.box].double().numpy(), numbers, every)
    centres = np.array(scipy.ndimage.center_of_mass(numbers > 0, numbers, every)) + start
    return table, np.concatenate([centres, ends[..., 0], ends[..., 1]], 1)


def _compared(found: Components, case: Case, calibrator: Calibrator, rule: ObjectRule) -> tuple[Floats, int, int]:
    """Return what labels say of each object, how many objects the labels have, and how many of these are missed."""
    assert case.labels is not None
    whole = decision_of(calibrator.regions).truth(case.labels, found.structure).numpy()
    ours, theirs = np.zeros(whole.shape, np.int64), _numbered(whole == 1)
    ours[found.box] = np.where(whole[found.box] == IGNORED, 0, found.numbers)
    said = np.full((int(found.numbers.max(initial=0)), 4), np.nan)
    known, missed = overlaps(ours, theirs, rule)
    labelled = np.bincount(ours.ravel(), minlength=1)[1:] > 0  # of an object without any label nothing is known
    said[: len(known)][labelled] = known[labelled]
    return said, int(theirs.max(initial=0)), missed


def _numbered(mask: NDArray[np.bool_]) -> Ints:
    return np.asarray(scipy.ndimage.label(mask, np.ones([3] * mask.ndim))[0], np.int64)
