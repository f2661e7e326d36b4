"""Glances: the little that is kept of a case while it is read, to judge later whether it belongs where it is.

Of its voxels, those of a regular grid of at most :data:`GRID` are compared with the labels, turned in every way that
keeps the shape; of a coarser grid of at most :data:`THUMBNAIL` the winning classes and labels are kept, so that they
can be compared with those of other cases. The scores themselves leave a digest. All of it is a few kilobytes per case.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.cases.agreement import Agreement, Turn, agreement, confusion, turns_of
from segcal.cases.base import Case
from segcal.numerics import winner
from segcal.types import IGNORED

GRID = 1 << 16
THUMBNAIL = 1 << 12
# With more classes, tables of pairs of classes would be larger than a case.
MOST_CLASSES = 256
# Of fewer voxels, agreement is mostly chance: with 256 its standard error is about 0.06.
FEWEST = 256


class Thumbnail(NamedTuple):
    """Winners and labels of a few thousand voxels, flat; negative where a voxel does not count."""

    decision: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Glance:
    """A glance at one case; of labels nothing where there are none, and little where few voxels count."""

    id: str
    digest: bytes  # of the scores
    space: tuple[int, ...]
    like_probs: bool = False
    counting: int | None = None  # voxels
    turned: Mapping[Turn, float] = field(default_factory=dict)  # agreement with labels; the first is as they are
    agreement: Agreement | None = None  # with the labels as they are, where they have several classes
    confusion: np.ndarray | None = None  # label by winner, (C, C); None with very many classes
    thumbnail: Thumbnail | None = None  # for comparisons between cases


def glance_at(case: Case) -> Glance:
    """Look at a case that is in memory."""
    decision = winner(case.logits, axis=0)
    classes = len(case.logits)
    return glance(case.id, digest_of(case.logits), decision, case.labels, case.mask, classes, case.like_probs)


def glance(
    case_id: str,
    digest: bytes,
    decision: Tensor,
    labels: Tensor | None,
    mask: Tensor | None,
    num_classes: int,
    like_probs: bool = False,
) -> Glance:
    """Keep what judging needs, given the digest of the scores and the winning class of every voxel."""
    space = tuple(decision.shape)
    if labels is None:
        return Glance(case_id, digest, space, like_probs)
    counting = int((labels != IGNORED).count_nonzero())
    if counting == 0:
        return Glance(case_id, digest, space, like_probs, counting)
    own = decision.cpu().numpy() if mask is None else decision.where(mask, IGNORED).cpu().numpy()
    truth = labels.cpu().numpy()
    grid, coarse = grid_of(space, GRID), grid_of(space, THUMBNAIL)
    on_grid, labels_on_grid = own[grid], truth[grid]
    several = len(np.unique(labels_on_grid[labels_on_grid >= 0])) > 1
    turns = turns_of(space) if counting >= FEWEST else []
    small = np.int16 if num_classes <= np.iinfo(np.int16).max else np.int32
    kept = Thumbnail(own[coarse].reshape(-1).astype(small), truth[coarse].reshape(-1).astype(small))
    return Glance(
        id=case_id,
        digest=digest,
        space=space,
        like_probs=like_probs,
        counting=counting,
        turned={turn: agreement(turn(truth)[grid], on_grid, num_classes).kappa for turn in turns},
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
    """Return a digest of scores ``(classes, *space)``, a class at a time."""
    found = hashlib.blake2b(f"{tuple(scores.shape)} {scores.dtype}".encode(), digest_size=16)
    for plane in scores:
        found.update(plane.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.digest()
