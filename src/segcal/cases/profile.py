r"""Profiles: the little that is kept of a case while it is read, to judge later whether its labels belong to it.

Of its voxels, those of a regular grid of at most :data:`GRID` are compared with the labels. The labels are turned in
every way that keeps the shape, and moved by up to :data:`FARTHEST` voxels along each axis. Of a coarser grid of at most
:data:`THUMBNAIL` the winning classes and labels are kept, for comparisons with other cases. The scores themselves leave
a digest. All of it is a few kilobytes per case.

Accuracy says little where one class is nearly everywhere: of a scan that is 98 % background, mirrored labels are right
in 97 %. Agreement here is Cohen's kappa,

.. math:: \kappa = \frac{a - e}{1 - e}, \qquad e = \sum_c p_c\, q_c,

with the accuracy a and the accuracy e of random labels: p and q are the shares of class c among winners and labels. It
is 1 for equal maps, about 0 for unrelated maps, and nan where e is 1, because there is one class only. Voxels where
either map is negative do not count.

Labels may lie otherwise than scores and still look like labels. A map can be turned and still have its shape: mirrored,
and with axes of one length exchanged. These turns are the symmetries of the box: 4 of a rectangle, 8 of a square, 48 of
a cube. The first changes nothing. With more than three axes (and there would be hundreds) only single axes are
mirrored. Or it can be shifted along an axis.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from segcal.cases.base import Case
from segcal.cases.decision import MaskDecision
from segcal.types import IGNORED

GRID = 1 << 16
SHIFT_GRID = 1 << 14
THUMBNAIL = 1 << 12
# With more classes, tables of pairs of classes would be larger than a case.
MOST_CLASSES = 256
# Of fewer voxels, agreement is mostly chance: with 256 its standard error is about 0.06.
FEWEST = 256
# Shifts are few voxels, and at most a quarter of an axis.
FARTHEST = 8
# Of boxes with more axes, only single axes are mirrored.
MOST_AXES = 3


@dataclass(frozen=True)
class Turn:
    """An order of the axes, and which of them are mirrored after that."""

    order: tuple[int, ...]
    mirrored: tuple[int, ...] = ()

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return a view of an array, turned."""
        return np.flip(values.transpose(self.order), self.mirrored)

    @property
    def exchanges(self) -> bool:
        """Whether axes change places."""
        return self.order != tuple(range(len(self.order)))

    def __str__(self) -> str:
        code = f"labels.transpose{self.order}" if self.exchanges else "labels"
        axes = self.mirrored[0] if len(self.mirrored) == 1 else self.mirrored
        return f"numpy.flip({code}, {axes})" if self.mirrored else code


def turns_of(shape: tuple[int, ...]) -> list[Turn]:
    """Return every turn that keeps a shape; the first changes nothing.

    >>> [str(turn) for turn in turns_of((4, 5))]
    ['labels', 'numpy.flip(labels, 1)', 'numpy.flip(labels, 0)', 'numpy.flip(labels, (0, 1))']
    """
    axes = tuple(range(len(shape)))
    long = [axis for axis in axes if shape[axis] > 1]  # the others look the same in a mirror
    if len(shape) > MOST_AXES:
        return [Turn(axes), *(Turn(axes, (axis,)) for axis in long)]
    orders = [order for order in permutations(axes) if tuple(shape[axis] for axis in order) == tuple(shape)]
    subsets = [tuple(np.flatnonzero(flags).tolist()) for flags in product((False, True), repeat=len(shape))]
    return [Turn(order, mirrored) for order in orders for mirrored in subsets if set(mirrored) <= set(long)]


class Shift(NamedTuple):
    """A move of so many voxels along an axis."""

    axis: int
    by: int

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Return the part of an array that stays inside when it moves."""
        window = [slice(None)] * values.ndim
        window[self.axis] = slice(None, -self.by) if self.by > 0 else slice(-self.by, None)
        return values[tuple(window)]

    def onto(self, values: np.ndarray) -> np.ndarray:
        """Return the part of an array on which that comes to lie."""
        return Shift(self.axis, -self.by).taken(values)

    def __str__(self) -> str:
        return f"moved by {self.by:+d} voxel{'' if abs(self.by) == 1 else 's'} along axis {self.axis}"


def confusion(labels: np.ndarray, decision: np.ndarray, num_classes: int) -> np.ndarray:
    """Return how often label a meets winner b, ``(C, C)``."""
    counts = (labels >= 0) & (decision >= 0)
    index = labels[counts].astype(np.int64) * num_classes + decision[counts]
    return np.bincount(index.reshape(-1), minlength=num_classes**2).reshape(num_classes, num_classes)


class Agreement(NamedTuple):
    """Number of voxels compared, the accuracy, and that of random labels; nan where nothing counts."""

    voxels: int
    accuracy: float
    by_chance: float

    @property
    def kappa(self) -> float:
        """The agreement beyond chance."""
        return (self.accuracy - self.by_chance) / (1 - self.by_chance) if self.by_chance < 1 else float("nan")


def table_agreement(table: np.ndarray) -> Agreement:
    """Return the agreement of a table of how often label a meets winner b."""
    total = table.sum()
    shares = table.sum(0) / max(total, 1), table.sum(1) / max(total, 1)
    return Agreement(int(total), float(np.trace(table) / max(total, 1)), float(shares[0] @ shares[1]))


def agreement(labels: np.ndarray, decision: np.ndarray, num_classes: int) -> Agreement:
    """Compare two maps of one shape.

    >>> agreement(np.array([0, 0, 1, 1, -1]), np.array([0, 1, 1, 1, 1]), 2).kappa
    0.5
    """
    counts = (labels >= 0) & (decision >= 0)
    own, truth = decision[counts], labels[counts]
    if not own.size:
        return Agreement(0, float("nan"), float("nan"))
    shares = [np.bincount(values, minlength=num_classes) / own.size for values in (own, truth)]
    return Agreement(own.size, float((own == truth).mean()), float(shares[0] @ shares[1]))


# Label maps that are compared at a time, so that only the result grows with their number.
BLOCK = 256


def pair_agreement(decisions: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the agreement of each of n maps of winners with each of m label maps, ``(n, m)``.

    Both are ``(..., voxels)`` and negative where a voxel does not count. Shares of classes are those of each map by
    itself, not of the voxels where both count: exact where all voxels count.
    """
    if len(labels) > BLOCK:
        parts = (labels[start : start + BLOCK] for start in range(0, len(labels), BLOCK))
        return np.concatenate([pair_agreement(decisions, part, num_classes) for part in parts], axis=1)
    shares = [_shares(maps, num_classes) for maps in (decisions, labels)]
    expected = shares[0] @ shares[1].T
    there = (labels >= 0).astype(np.float32)
    both = (decisions >= 0).astype(np.float32) @ there.T
    marked = np.where(labels < 0, num_classes, labels)  # a negative winner equals no label
    right = np.stack([(marked == one).sum(axis=1) for one in decisions])
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = (right / both - expected) / (1 - expected)
    return np.where(np.isfinite(found), found, np.nan)


def _shares(maps: np.ndarray, num_classes: int) -> np.ndarray:
    counts = np.stack([np.bincount(one[one >= 0], minlength=num_classes) for one in maps]).astype(np.float64)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def better_numbers(table: np.ndarray, gain: float, least: float, most: float) -> dict[int, int]:
    r"""Return classes that have changed numbers: those of the rows that clearly fit other columns than their own.

    Overlap of row a and column b is Dice's :math:`2 n_{ab} / (n_a + n_b)`, so that small classes count like large ones.
    Of the one-to-one assignment with the largest total, whole cycles are judged. A class that is merely mistaken for
    another improves alone, but where numbers were exchanged, (nearly) every class of the cycle improves. Their mean
    overlap must grow by `gain` and be at least `least`. A share `most` of them, and at least two, must improve.
    """
    rows, columns = table.sum(1), table.sum(0)
    overlap = 2 * table / np.maximum(rows[:, None] + columns, 1)
    _, chosen = scipy.optimize.linear_sum_assignment(overlap, maximize=True)
    found: dict[int, int] = {}
    for cycle in _cycles(chosen.tolist()):
        seen = np.array([row for row in cycle if rows[row]], dtype=int)
        other, own = overlap[seen, chosen[seen]], overlap[seen, seen]
        better = int((other > own).sum())
        if better >= max(2, most * len(seen)) and (other - own).mean() >= gain and other.mean() >= least:
            found |= {int(row): int(chosen[row]) for row in seen}
    return dict(sorted(found.items()))


def _cycles(mapping: list[int]) -> list[list[int]]:
    found, done = [], set()
    for start in range(len(mapping)):
        cycle = []
        while start not in done:
            done.add(start)
            cycle.append(start)
            start = mapping[start]
        if len(cycle) > 1:
            found.append(cycle)
    return found


def shift_agreement(truth: np.ndarray, own: np.ndarray, num_classes: int) -> dict[Shift, tuple[float, float]]:
    """Return the agreement of labels as they are and moved, by shift, both on the voxels that a shift leaves.

    Along each axis, both ways, it goes on from the second step for as long as that helps.
    """
    found: dict[Shift, tuple[float, float]] = {}
    for axis, sign in product(range(own.ndim), (-1, 1)):
        for step in range(1, min(FARTHEST, own.shape[axis] // 4) + 1):
            shift = Shift(axis, sign * step)
            there = shift.onto(own)
            grid = grid_of(there.shape, SHIFT_GRID)
            as_it_is, moved = (
                agreement(each[grid], there[grid], num_classes).kappa
                for each in (shift.onto(truth), shift.taken(truth))
            )
            found[shift] = as_it_is, moved
            if step > 1 and not moved > as_it_is:
                break
    return found


class Thumbnail(NamedTuple):
    """Winners and labels of a few thousand voxels, flat; negative where a voxel does not count."""

    decision: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Profile:
    """The profile of one case; of labels nothing where there are none, and little where few voxels count."""

    id: str
    digest: bytes  # of the scores
    space: tuple[int, ...]
    kind_warning: str = ""  # about the kind
    counting: int | None = None  # voxels
    turned: Mapping[Turn, float] = field(default_factory=dict)  # agreement with labels; the first is as they are
    shifted: Mapping[Shift, tuple[float, float]] = field(default_factory=dict)  # as they are, and moved
    agreement: Agreement | None = None  # with the labels as they are, where they have several classes
    confusion: np.ndarray | None = None  # label by winner, (C, C); None with very many classes
    thumbnail: Thumbnail | None = None  # for comparisons between cases


def profile_at(case: Case, decision: MaskDecision) -> Profile:
    """Look at a case that is in memory."""
    own, truth = decision.map(decision.mask(case.logits)), decision.true_map(case.labels)
    return profile(case.id, digest_of(case.logits), own, truth, case.mask, decision.values, case.kind_warning)


def profile(
    case_id: str,
    digest: bytes,
    decision: Tensor,
    labels: Tensor | None,
    mask: Tensor | None,
    num_classes: int,
    kind_warning: str = "",
) -> Profile:
    """Keep what judging needs, given the digest of the scores and the winning class of every voxel."""
    space = tuple(decision.shape)
    if labels is None:
        return Profile(case_id, digest, space, kind_warning)
    counting = int((labels != IGNORED).count_nonzero())
    if counting == 0:
        return Profile(case_id, digest, space, kind_warning, counting)
    own = decision.cpu().numpy() if mask is None else decision.where(mask, IGNORED).cpu().numpy()
    truth = labels.cpu().numpy()
    grid, coarse = grid_of(space, GRID), grid_of(space, THUMBNAIL)
    on_grid, labels_on_grid = own[grid], truth[grid]
    several = len(np.unique(labels_on_grid[labels_on_grid >= 0])) > 1
    turns = turns_of(space) if counting >= FEWEST else []
    small = next(kind for kind in (np.int8, np.int16, np.int32) if num_classes <= np.iinfo(kind).max)
    kept = Thumbnail(own[coarse].reshape(-1).astype(small), truth[coarse].reshape(-1).astype(small))
    return Profile(
        id=case_id,
        digest=digest,
        space=space,
        kind_warning=kind_warning,
        counting=counting,
        turned={turn: agreement(turn(truth)[grid], on_grid, num_classes).kappa for turn in turns},
        shifted=shift_agreement(truth, own, num_classes) if counting >= FEWEST and len(space) <= MOST_AXES else {},
        agreement=agreement(labels_on_grid, on_grid, num_classes) if several else None,
        confusion=confusion(labels_on_grid, on_grid, num_classes) if num_classes <= MOST_CLASSES else None,
        thumbnail=kept if counting >= FEWEST else None,
    )


def grid_of(shape: tuple[int, ...], most: int) -> tuple[slice, ...]:
    """Return a regular grid of at most `most` voxels; the longest axes are thinned first.

    >>> grid_of((3, 100, 10), 120)
    (slice(None, None, 1), slice(None, None, 13), slice(None, None, 2))
    """
    steps = [1] * len(shape)
    while np.prod(sizes := [-(-size // step) for size, step in zip(shape, steps, strict=True)], dtype=float) > most:
        axis = int(np.argmax(sizes))
        steps[axis] += max(1, sizes[axis] // most)  # an axis that is longer than the grid at once
    return tuple(slice(None, None, step) for step in steps)


def digest_of(scores: Tensor) -> bytes:
    """Return a digest of scores ``(classes, *space)``: a checksum of every class, against accidents."""
    planes = (plane.detach().cpu().reshape(-1).contiguous() for plane in scores)
    # A single number is contiguous whatever its stride, but only with stride 1 it is viewed as bytes.
    sums = [zlib.crc32(plane.as_strided(plane.shape, (1,)).view(torch.uint8).numpy()) for plane in planes]
    return f"{tuple(scores.shape)} {scores.dtype} {sums}".encode()
