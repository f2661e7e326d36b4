"""The voxels of a fit and how they reach it: a sample of every case that is kept, or a stream.

A *sample* draws a bounded number of voxels from each case, once, and keeps them (:mod:`segcal.fitting.sample`). A
*stream* reads all voxels of all cases again on every pass and keeps nothing.
"""

import copy
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.surroundings import CONTEXTS, each_context
from segcal.cases.base import Case, CaseError, Cases, naming_case
from segcal.cases.glance import Glance
from segcal.cases.parallel import Engine, Failures, Workers, map_cases
from segcal.errors import InputError
from segcal.fitting.sample import Room, Voxels, draw, join, systematic
from segcal.numerics import compute_dtype
from segcal.statistics.boundary import find_boundary, squared_distances

# Values in one step of a stream: bounds its memory whatever the size of a case.
STEP_VALUES = 1 << 21

Result = TypeVar("Result")
CaseWork: TypeAlias = Callable[[str, Iterable[Voxels]], Result]


class VoxelSource(ABC):
    """Batches of voxels that can be read any number of times.

    Attributes:
        num_classes: C.
        ids: the cases they come from; those that could not be read are left out.
        used: how many voxels it holds.
        available: how many labelled voxels the cases have; also the sum of the weights, in expectation.
        streamed: whether a pass reads the cases again.
    """

    num_classes: int
    ids: tuple[str, ...]
    used: int
    available: int
    streamed: bool

    @abstractmethod
    def __iter__(self) -> Iterator[Voxels]: ...

    @abstractmethod
    def subset(self, ids: Collection[str]) -> "VoxelSource":
        """Return the voxels of these cases alone."""

    @abstractmethod
    def weighted(self, factors: Mapping[str, float]) -> "VoxelSource":
        """Return the voxels with weights times those of their cases, where they have one."""

    def on(self, device: torch.device) -> "VoxelSource":
        """Return voxels that are on a device, if they are held: what is streamed gets there in every pass."""
        return self

    @property
    def total_weight(self) -> float:
        """Return what a mean divides by."""
        return float(self.available)

    def each_case(self, function: CaseWork[Result]) -> Iterator[Result]:
        """Yield what a function makes of the voxels of one case after the other, or of all at once where they are held.

        It is given the id and the batches, and must be picklable: where cases are streamed, an engine may have other
        machines go through them. The order is that of the cases, so that sums over them are the same to the last bit.
        """
        yield function("", iter(self))


class HeldVoxels(VoxelSource):
    """Voxels in memory, those of one case after those of another: so many each, by case.

    They stand for so many `available` ones; for the sum of their weights, if that is not given.
    """

    streamed = False

    def __init__(self, voxels: Voxels, counts: Mapping[str, int], available: int | None = None) -> None:
        self._voxels, self._counts, self.ids = voxels, dict(counts), tuple(counts)
        self.num_classes, self.used = len(voxels.logits), voxels.labels.numel()
        self._weight = float(voxels.weight.sum(dtype=torch.float64))
        self.available = round(self._weight) if available is None else available

    def __iter__(self) -> Iterator[Voxels]:
        yield self._voxels

    def on(self, device: torch.device) -> "HeldVoxels":
        """Return the voxels on a device."""
        there = copy.copy(self)
        there._voxels = self._voxels.each(lambda values: values.to(device))
        return there

    def subset(self, ids: Collection[str]) -> "HeldVoxels":
        """Return copies of the voxels of these cases."""
        sizes = list(self._counts.values())
        ends = np.cumsum(sizes)
        kept = {
            case_id: self._voxels.take(slice(int(end) - size, int(end)))
            for case_id, size, end in zip(self._counts, sizes, ends, strict=True)
            if case_id in ids
        }
        return HeldVoxels(join(list(kept.values())), {case_id: self._counts[case_id] for case_id in kept})

    def weighted(self, factors: Mapping[str, float]) -> "HeldVoxels":
        """Return the voxels with other weights."""
        each = torch.tensor([factors.get(case_id, 1.0) for case_id in self._counts], dtype=torch.float64)
        times = each.repeat_interleave(torch.tensor(list(self._counts.values()))).to(self._voxels.weight)
        return HeldVoxels(self._voxels._replace(weight=self._voxels.weight * times), self._counts, self.available)

    @property
    def total_weight(self) -> float:
        """Return the sum of the weights; the ratio to it has less variance than the ratio to its expectation."""
        return self._weight


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
        seen: Callable[[Glance], None] | None = None,
        contexts: Collection[str] = (),
    ) -> None:
        found: dict[str, int] = {}
        counts: dict[str, int] = {}
        room = Room(cases.num_classes, len(cases) * (per_case + 1), len(CONTEXTS) if contexts else None)
        failures = Failures(failed)
        found_in = map_cases(cases, partial(_draw_from, per_case, seed, contexts), workers, failures.take, seen)
        for case_id, (available, voxels) in found_in:
            found[case_id], counts[case_id] = available, voxels.labels.numel()
            with naming_case(case_id):
                room.add(voxels)
            tick()
        if not (isinstance(workers, Engine) and workers.partial):
            refuse_nothing(sum(found.values()), len(cases), len(found), failures)
        super().__init__(room.content(), counts, sum(found.values()))


class StreamedVoxels(VoxelSource):
    """All voxels of all cases, read again on every pass."""

    streamed = True

    def __init__(
        self,
        cases: Cases,
        tick: Callable[[], None],
        workers: Workers = 1,
        failed: Callable[[CaseError], None] | None = None,
        seen: Callable[[Glance], None] | None = None,
        contexts: Collection[str] = (),
    ) -> None:
        self.num_classes, self._contexts, self._workers = cases.num_classes, contexts, workers
        self._factors: Mapping[str, float] = {}
        found: dict[str, int] = {}
        failures = Failures(failed)
        for case_id, count in map_cases(cases, _count_labelled, workers, failures.take, seen):
            found[case_id] = count
            tick()
        self.ids, self._counts = tuple(found), found
        self._cases = cases.subset(found)
        self.used = self.available = sum(found.values())
        refuse_nothing(self.used, len(cases), len(found), failures)

    def subset(self, ids: Collection[str]) -> "StreamedVoxels":
        """Return a stream of these cases."""
        chosen = copy.copy(self)
        chosen._counts = {case_id: count for case_id, count in self._counts.items() if case_id in ids}
        chosen._cases, chosen.ids = self._cases.subset(chosen._counts), tuple(chosen._counts)
        chosen.used = chosen.available = sum(chosen._counts.values())
        return chosen

    def weighted(self, factors: Mapping[str, float]) -> "StreamedVoxels":
        """Return the stream with other weights."""
        chosen = copy.copy(self)
        chosen._factors = factors
        return chosen

    @property
    def total_weight(self) -> float:
        """Return the sum of the weights."""
        return sum(count * self._factors.get(case_id, 1.0) for case_id, count in self._counts.items())

    def __iter__(self) -> Iterator[Voxels]:
        for case in self._cases:
            yield from _batches(case, self._contexts, self._factors)

    def each_case(self, function: CaseWork[Result]) -> Iterator[Result]:
        """Yield what a function makes of the voxels of one case after the other."""
        # Processes would be started anew on every pass, if nobody keeps them: then this one goes through the cases.
        workers = self._workers.fresh() if isinstance(self._workers, Engine) else 1
        for _, result in map_cases(self._cases, partial(_on_batches, self._contexts, self._factors, function), workers):
            yield result


def _batches(case: Case, contexts: Collection[str], factors: Mapping[str, float]) -> Iterator[Voxels]:
    labels = require_labels(case).reshape(-1)
    logits = case.logits.reshape(case.logits.shape[0], -1)
    around, distance = _around(case, contexts)
    step = max(256, STEP_VALUES // logits.shape[0])
    for start in range(0, labels.numel(), step):
        voxels = _valid(Voxels(logits, labels, labels, around, distance).take(slice(start, start + step)))
        yield voxels._replace(weight=voxels.weight * factors.get(case.id, 1.0))


def _on_batches(
    contexts: Collection[str], factors: Mapping[str, float], function: CaseWork[Result], case: Case
) -> Result:
    return function(case.id, _batches(case, contexts, factors))


def gather(source: VoxelSource, most: int, seed: int) -> Voxels:
    """Return about `most` voxels of a source, or all of them if it holds no more.

    Of a sample, each is taken with the same probability; of a stream, hard ones more often. Weights undo either.
    """
    rng = np.random.default_rng([seed, most])
    parts = []
    for voxels in source:
        count = voxels.labels.numel()
        quota = max(1, round(most * count / source.used))
        if source.used > most and source.streamed:
            voxels = draw(voxels, quota, rng)
        elif source.used > most:
            part = voxels.take(systematic(torch.full(voxels.labels.shape, quota / count), rng))
            voxels = part._replace(weight=part.weight / (quota / count))
        parts.append(voxels)
    return join(parts)


def _around(case: Case, contexts: Collection[str]) -> tuple[Tensor | None, Tensor | None]:
    """Return the surroundings of every voxel, and how far it is from the boundary, if anything is wanted."""
    if not contexts:
        return None, None
    boundary = find_boundary(require_labels(case).numpy())
    distance = torch.from_numpy(np.atleast_1d(np.sqrt(squared_distances(boundary)))).float().reshape(-1)
    return each_context(case.logits[None].to(compute_dtype(case.logits.dtype)), case.context, contexts), distance


def _valid(voxels: Voxels) -> Voxels:
    """Return the voxels that count, each with weight 1, in the types that are computed in."""
    if voxels.labels.numel() and int(voxels.labels.amin()) < 0:
        voxels = voxels.take(voxels.labels >= 0)
    logits = voxels.logits.to(compute_dtype(voxels.logits.dtype)).contiguous()
    weight = torch.ones(voxels.labels.numel(), dtype=logits.dtype)
    return voxels._replace(logits=logits, labels=voxels.labels.to(torch.int32), weight=weight)


def _draw_from(per_case: int, seed: int, contexts: Collection[str], case: Case) -> tuple[int, Voxels]:
    logits, labels = case.logits.reshape(case.logits.shape[0], -1), require_labels(case).reshape(-1)
    voxels = _valid(Voxels(logits, labels, labels, *_around(case, contexts)))
    rng = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    return voxels.labels.numel(), draw(voxels, per_case, rng)


def _count_labelled(case: Case) -> int:
    """Return how many voxels of a case count."""
    return int((require_labels(case) >= 0).sum())


def require_labels(case: Case) -> Tensor:
    """Return the labels of a case that must have them."""
    if case.labels is None:
        raise CaseError(case.id, "it has no labels, but a fit needs them. Pass labels for every case.")
    return case.labels


def refuse_nothing(used: int, num_cases: int, num_read: int, failures: Failures) -> None:
    """Refuse a set in which no case could be read, or no voxel counts."""
    if num_read == 0:
        raise failures.refuse_all(num_cases)
    if used == 0:
        raise InputError(
            f"labels of all {num_cases} cases are ignored everywhere, but at least one voxel must count. "
            "Check the ignore label and the masks."
        )
