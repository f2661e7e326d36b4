"""A weighted sample of every case, drawn in one pass over the cases and held in memory, for each of their poolings."""

import itertools
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.neighbourhood import CONTEXTS
from segcal.cases.base import Case, CaseError, Cases, naming_case
from segcal.cases.parallel import Engine, Failures, Workers, map_cases
from segcal.cases.profile import Profile
from segcal.errors import InputError
from segcal.fitting.voxels import (
    HeldVoxels,
    Voxels,
    distance_of,
    draw_hard,
    hardness,
    neighbourhood_of,
    refuse_nothing,
    release,
    require_labels,
    valid,
)
from segcal.numerics import compute_dtype


class SampledVoxels(HeldVoxels):
    """A weighted sample of every case, held in memory."""

    def __init__(
        self,
        cases: Cases,
        per_case: int,
        seed: int,
        tick: Callable[[], None],
        workers: Workers = 1,
        failed: Callable[[CaseError], None] | None = None,
        seen: Callable[[Profile], None] | None = None,
        contexts: Collection[str] = (),
    ) -> None:
        (drawn,) = _drawn([cases], per_case, seed, tick, workers, failed, seen, contexts)
        super().__init__(*drawn)


def draw_each(collections: Sequence[Cases], *how: Any) -> list[HeldVoxels]:
    """Return the samples of several poolings of the same cases; `how` is the rest of :class:`SampledVoxels`."""
    return [HeldVoxels(*drawn) for drawn in _drawn(collections, *how)]


def _drawn(
    collections: Sequence[Cases],
    per_case: int,
    seed: int,
    tick: Callable[[], None],
    workers: Workers,
    failed: Callable[[CaseError], None] | None,
    seen: Callable[[Profile], None] | None,
    contexts: Collection[str],
) -> list[tuple[Voxels, dict[str, int], int]]:
    """Draw from each case once, in every pooling."""
    first, *others = collections
    most, around = len(first) * (per_case + 1), len(CONTEXTS) if contexts else None
    rooms = [Room(first.num_classes, most, around) for _ in collections]
    failures, one = Failures(failed), partial(_draw_from, per_case, seed, contexts)
    work: Callable[[Case], Any] = partial(_draw_from_each, per_case, seed, contexts, others) if others else one
    found: dict[str, int] = {}
    counts: list[dict[str, int]] = [{} for _ in collections]
    for case_id, result in map_cases(first, work, workers, failures.take, seen):
        for room, own, (available, voxels) in zip(rooms, counts, result if others else [result], strict=True):
            found[case_id], own[case_id] = available, voxels.labels.numel()
            with naming_case(case_id):
                room.add(voxels)
        release(first, case_id)
        tick()
    if not (isinstance(workers, Engine) and workers.partial):
        refuse_nothing(sum(found.values()), len(first), len(found), failures)
    return [(room.content(), own, sum(found.values())) for room, own in zip(rooms, counts, strict=True)]


def _draw_from(
    per_case: int, seed: int, contexts: Collection[str], case: Case, distance: Tensor | None = None
) -> tuple[int, Voxels]:
    logits, labels = case.logits.reshape(case.logits.shape[0], -1), require_labels(case).reshape(-1)
    voxels = Voxels(logits, labels, labels, *neighbourhood_of(case, contexts, distance))
    entries = None if case.votes is None else case.votes.entries()
    counted = None if entries is None else entries.index
    if entries is None and labels.numel() and int(labels.amin()) < 0:
        counted = (labels >= 0).nonzero()[:, 0]
    available = labels.numel() if counted is None else counted.numel()
    if available <= per_case:
        return available, valid(voxels, entries)
    # Those that do not count are left out of the chances, so that of all others nothing is copied.
    share = torch.ones(available, dtype=torch.float64) if entries is None else entries.votes.double() / entries.total
    hard = hardness(logits.to(compute_dtype(logits.dtype)))
    hard = (hard if counted is None else hard[counted]).double() * share
    rng = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    index, probability = draw_hard(hard, per_case, float(share.sum()), float(hard.sum()), rng, share)
    where = index if counted is None else counted[index]
    drawn = valid(voxels.take(where))
    own = drawn.labels if entries is None else entries.label[index].int()
    return available, drawn._replace(labels=own, weight=(share[index] / probability).to(drawn.weight.dtype))


def _draw_from_each(
    per_case: int, seed: int, contexts: Collection[str], others: Sequence[Cases], case: Case
) -> list[tuple[int, Voxels]]:
    """Draw from a case, and from the same case pooled otherwise, which was read with it."""
    every = itertools.chain([case], (other.checked(case.id) for other in others))
    distance = distance_of(case) if contexts else None  # of the labels, which all poolings have in common
    return [_draw_from(per_case, seed, contexts, each, distance) for each in every]


class Room:
    """Room for a number of voxels, reserved as a whole before any case is read.

    Small pieces kept one by one would lie between the large arrays of the cases, and memory in between could not be
    used again. The process would grow with every case, although it keeps little of each.
    """

    def __init__(self, num_classes: int, most: int, contexts: int | None) -> None:
        around = (None, None) if contexts is None else (torch.empty(contexts, most), torch.empty(most))
        labels = torch.empty(most, dtype=torch.int32)
        self._voxels = Voxels(torch.empty(num_classes, most), labels, torch.empty(most), *around)
        self._used = 0

    def add(self, voxels: Voxels) -> None:
        """Put the voxels of a case behind those that are there."""
        mine = self._voxels
        if voxels.logits.dtype == torch.float64 != mine.logits.dtype:
            self._voxels = mine = mine._replace(logits=mine.logits.double(), weight=mine.weight.double())
        part = slice(self._used, self._used + voxels.labels.numel())
        for own, its in zip(mine, voxels, strict=True):
            if own is not None and its is not None:
                own[..., part] = its
        if self._used and mine.context is not None and part.stop > self._used:
            _same_known(mine.context[:, 0], mine.context[:, self._used])
        self._used = part.stop

    def content(self) -> Voxels:
        """Return all of them."""
        return self._voxels.take(slice(self._used)).each(Tensor.contiguous)


def _same_known(first: Tensor, other: Tensor) -> None:
    """Refuse a case of whose neighbourhood more or less is known than of the first one's."""
    for name, had, has in zip(CONTEXTS, (~first.isnan()).tolist(), (~other.isnan()).tolist(), strict=True):
        if had != has:
            raise InputError(
                f"its {name} is {'known' if has else 'not known'}, but that of the first case is "
                f"{'known' if had else 'not known'}. "
                "Give all cases the same members and the same number of axes, or leave this one out."
            )
