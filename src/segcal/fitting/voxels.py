r"""The voxels of a fit and how they reach it: a sample of every case that is kept, or a stream.

A *sample* draws a bounded number of voxels from each case, once, and keeps them. Hard ones are frequent in it, with
weights that undo it: voxel i of n is drawn with probability

.. math:: \pi_i = \min\bigl(1,\ m\,(\tfrac12 \tfrac1n + \tfrac12 \tfrac{h_i}{\sum_j h_j})\bigr), \qquad
          h_i = 1 - \max_c S(z_i)_c,

by systematic sampling, and gets the weight :math:`1 / \pi_i`. Whether a voxel is drawn depends on its logits alone,
never on its label. So the weighted likelihood is an unbiased estimate of that of all voxels.

Of several raters, a voxel comes once for each class that one of them marked, weighted by the share of its votes. The
objective is that of the label maps of all raters, one after the other (:mod:`segcal.raters`).

A *stream* reads all voxels of all cases again on every pass and keeps nothing.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.neighbourhood import each_context
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.parallel import Engine, Failures, Workers, map_cases
from segcal.cases.profile import Profile
from segcal.errors import InputError
from segcal.kernels.distance_numba import squared_distances
from segcal.numerics import at_once, compute_dtype
from segcal.raters import Entries
from segcal.statistics.boundary import find_boundary

# Values in one step of a stream: bounds its memory whatever the size of a case.
STEP_VALUES = 1 << 21

Result = TypeVar("Result")
CaseWork: TypeAlias = Callable[[str, Iterable["Voxels"]], Result]


class Voxels(NamedTuple):
    """A batch of labelled voxels.

    Attributes:
        logits: ``(C, n)`` float32 or float64.
        labels: ``(n,)`` int32.
        weight: ``(n,)``, of the type of the logits.
        context: ``(K, n)``, of :data:`segcal.calibrators.neighbourhood.CONTEXTS`, NaN where one is not known; None if
            it was not asked for.
        distance: ``(n,)``, from the boundary of the labels, infinite where there is none; None as for `context`.
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor
    context: Tensor | None = None
    distance: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Voxels":
        """Return voxels whose tensors were changed alike."""
        return Voxels(*(None if values is None else change(values) for values in self))  # type: ignore[arg-type]

    def take(self, index: Tensor | slice) -> "Voxels":
        """Return the voxels at these indices, or those that a mask keeps."""
        return self.each(lambda values: values[..., index])

    def steps(self, values: int, device: torch.device | None = None) -> Iterator["Voxels"]:
        """Yield parts of about so many values, on a device."""
        step = at_once(values, len(self.logits), device)
        for start in range(0, self.labels.numel(), step):
            yield self.take(slice(start, start + step)).each(lambda values: values.to(device))


def join(parts: list[Voxels]) -> Voxels:
    """Return all voxels; those of a single case are not copied."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    joined = (None if values[0] is None else torch.cat(values, dim=-1) for values in columns)
    return Voxels(*joined)  # type: ignore[arg-type]


def draw(voxels: Voxels, quota: int, rng: np.random.Generator) -> Voxels:
    """Draw about `quota` voxels, hard ones more often, with weights that undo it."""
    if voxels.labels.numel() <= quota:
        return voxels
    weight = voxels.weight.double()
    hard = hardness(voxels.logits).double() * weight
    index, probability = draw_hard(hard, quota, float(weight.sum()), float(hard.sum()), rng, weight)
    return voxels.take(index)._replace(weight=(weight[index] / probability).to(voxels.weight.dtype))


def hardness(logits: Tensor) -> Tensor:
    """Return one minus the confidence of logits ``(C, n)``, never quite zero."""
    return 1 - torch.softmax(logits, dim=0).amax(0) + 1e-9


def draw_hard(
    hard: Tensor, quota: int, total: float, total_hard: float, rng: np.random.Generator, weight: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the indices of what is drawn, hard ones more often, and its probability, given the sums over all."""
    probability = (quota * (0.5 / total * weight + 0.5 / total_hard * hard)).clamp(max=1.0)
    index = systematic(probability, rng)
    return index, probability[index]


def systematic(probability: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of voxels drawn with these probabilities."""
    # Voxel i is drawn when the running sum passes a whole number minus a common random offset.
    running, offset = probability.cumsum(0, dtype=torch.float64), float(rng.random())
    whole = torch.arange(1, int(running[-1] + offset) + 1, dtype=torch.float64) - offset
    # Rounding may let one step of size 1 pass two whole numbers.
    return torch.searchsorted(running, whole).clamp(max=len(running) - 1).unique_consecutive()


class VoxelSource(ABC):
    """Batches of voxels that can be read any number of times.

    Attributes:
        num_classes: C.
        ids: the cases they come from; those that could not be read are left out.
        used: how many voxels it holds.
        available: how many labelled voxels the cases have; also the sum of the weights, in expectation.
        total_weight: the sum of the weights; the ratio to it has less variance than the ratio to its expectation.
        streamed: whether a pass reads the cases again.
    """

    num_classes: int
    ids: tuple[str, ...]
    used: int
    available: int
    total_weight: float
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

    def each_case(self, function: CaseWork[Result]) -> Iterator[Result]:
        """Yield what a function makes of the voxels of one case after the other, or of all at once where they are held.

        It is given the id and the batches, and must be picklable: where cases are streamed, an engine may have other
        machines go through them. The order is that of the cases, so that sums over them are the same to the last bit.
        """
        yield function("", iter(self))

    def single_cases(self) -> list["VoxelSource"]:
        """Return the voxels of each case that has some."""
        return [part for part in (self.subset([case_id]) for case_id in self.ids) if part.used]

    def by_case(self, function: CaseWork[Result]) -> Iterator[tuple[str, Result]]:
        """Yield what a function makes of the voxels of each case, held or streamed, with its id."""
        for part in self.single_cases():
            yield part.ids[0], function(part.ids[0], part)


class HeldVoxels(VoxelSource):
    """Voxels in memory, those of one case after those of another: so many each, by case.

    They stand for so many `available` ones; for the sum of their weights, if that is not given.
    """

    streamed = False

    def __init__(self, voxels: Voxels, counts: Mapping[str, int], available: int | None = None) -> None:
        self._voxels, self._counts, self.ids = voxels, dict(counts), tuple(counts)
        self.num_classes, self.used = len(voxels.logits), voxels.labels.numel()
        self.total_weight = float(voxels.weight.sum(dtype=torch.float64))
        self.available = round(self.total_weight) if available is None else available

    def __iter__(self) -> Iterator[Voxels]:
        yield self._voxels

    @property
    def size(self) -> int:
        """Return how many bytes it takes."""
        return sum(0 if values is None else values.nbytes for values in self._voxels)

    def on(self, device: torch.device) -> "HeldVoxels":
        """Return the voxels on a device."""
        there = copy.copy(self)
        there._voxels = self._voxels.each(lambda values: values.to(device))
        return there

    def subset(self, ids: Collection[str]) -> "HeldVoxels":
        """Return copies of the voxels of these cases."""
        kept, parts, end = {}, [], 0
        for case_id, size in self._counts.items():
            end += size
            if case_id in ids:
                kept[case_id] = size
                parts.append(self._voxels.take(slice(end - size, end)))
        return HeldVoxels(join(parts), kept)

    def weighted(self, factors: Mapping[str, float]) -> "HeldVoxels":
        """Return the voxels with other weights."""
        each = torch.tensor([factors.get(case_id, 1.0) for case_id in self._counts], dtype=torch.float64)
        times = each.repeat_interleave(torch.tensor(list(self._counts.values()))).to(self._voxels.weight)
        return HeldVoxels(self._voxels._replace(weight=self._voxels.weight * times), self._counts, self.available)


class StreamedVoxels(VoxelSource):
    """All voxels of all cases, read again on every pass."""

    streamed = True

    def __init__(
        self,
        cases: Cases,
        tick: Callable[[], None],
        workers: Workers = 1,
        failed: Callable[[CaseError], None] | None = None,
        seen: Callable[[Profile], None] | None = None,
        contexts: Collection[str] = (),
    ) -> None:
        self.num_classes, self._contexts, self._workers = cases.num_classes, contexts, workers
        found: dict[str, tuple[int, float]] = {}
        failures = Failures(failed)
        for case_id, count in map_cases(cases, _count_labelled, workers, failures.take, seen):
            found[case_id] = count
            release(cases, case_id)
            tick()
        self._take(cases.subset(found), found, {})
        refuse_nothing(self.used, len(cases), len(found), failures)

    def _take(self, cases: Cases, counts: dict[str, tuple[int, float]], factors: Mapping[str, float]) -> None:
        self._cases, self._counts, self._factors, self.ids = cases, counts, factors, tuple(counts)
        self.used = self.available = sum(used for used, _ in counts.values())
        self.total_weight = sum(weight * factors.get(case_id, 1.0) for case_id, (_, weight) in counts.items())

    def subset(self, ids: Collection[str]) -> "StreamedVoxels":
        """Return a stream of these cases."""
        chosen, counts = copy.copy(self), {i: count for i, count in self._counts.items() if i in ids}
        chosen._take(self._cases.subset(counts), counts, self._factors)
        return chosen

    def weighted(self, factors: Mapping[str, float]) -> "StreamedVoxels":
        """Return the stream with other weights."""
        chosen = copy.copy(self)
        chosen._take(self._cases, self._counts, factors)
        return chosen

    def __iter__(self) -> Iterator[Voxels]:
        for case in self._cases:
            yield from _batches(case, self._contexts, self._factors)
            release(self._cases, case.id)

    def each_case(self, function: CaseWork[Result]) -> Iterator[Result]:
        """Yield what a function makes of the voxels of one case after the other."""
        # Processes would be started anew on every pass, if nobody keeps them: then this one goes through the cases.
        workers = self._workers.fresh() if isinstance(self._workers, Engine) else 1
        work = partial(_on_batches, self._contexts, self._factors, function)
        for case_id, result in map_cases(self._cases, work, workers):
            release(self._cases, case_id)
            yield result

    def by_case(self, function: CaseWork[Result]) -> Iterator[tuple[str, Result]]:
        """Yield what a function makes of the voxels of each case, read one after the other."""
        yield from zip(self.ids, self.each_case(function), strict=True)


def _batches(case: Case, contexts: Collection[str], factors: Mapping[str, float]) -> Iterator[Voxels]:
    labels = require_labels(case).reshape(-1)
    logits = case.logits.reshape(case.logits.shape[0], -1)
    around, distance = neighbourhood_of(case, contexts)
    step = max(256, STEP_VALUES // logits.shape[0])
    for start in range(0, labels.numel(), step):
        part = slice(start, start + step)
        entries = None if case.votes is None else case.votes.part(part).entries()
        voxels = valid(Voxels(logits, labels, labels, around, distance).take(part), entries)
        yield voxels._replace(weight=voxels.weight * factors.get(case.id, 1.0))


def _on_batches(
    contexts: Collection[str], factors: Mapping[str, float], function: CaseWork[Result], case: Case
) -> Result:
    return function(case.id, _batches(case, contexts, factors))


def distance_of(case: Case) -> Tensor:
    """Return how far every voxel is from the boundary of the labels."""
    boundary = find_boundary(require_labels(case).numpy())
    return torch.from_numpy(np.atleast_1d(np.sqrt(squared_distances(boundary)))).float().reshape(-1)


def neighbourhood_of(
    case: Case, contexts: Collection[str], distance: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the neighbourhood of every voxel, and how far it is from the boundary, if anything is wanted."""
    if not contexts:
        return None, None
    distance = distance_of(case) if distance is None else distance
    return each_context(case.logits[None].to(compute_dtype(case.logits.dtype)), case.context, contexts), distance


def valid(voxels: Voxels, entries: Entries | None = None) -> Voxels:
    """Return the voxels that count, each with weight 1, in the types that are computed in.

    Those of several raters come once for each class that one of them marked, weighted by its votes.
    """
    if entries is not None:
        whole = len(entries.index) == voxels.labels.numel() and bool((entries.votes == entries.total).all())
        voxels = voxels if whole else voxels.take(entries.index)
        voxels = voxels._replace(labels=entries.label)
    elif voxels.labels.numel() and int(voxels.labels.amin()) < 0:
        voxels = voxels.take(voxels.labels >= 0)
    logits = voxels.logits.to(compute_dtype(voxels.logits.dtype)).contiguous()
    weight = torch.ones(voxels.labels.numel(), dtype=logits.dtype)
    weight = weight if entries is None else (entries.votes / entries.total).to(logits.dtype)
    return voxels._replace(logits=logits, labels=voxels.labels.to(torch.int32), weight=weight)


def release(cases: Cases, case_id: str) -> None:
    """Let go of a case that was read."""
    if cases.kept is not None:
        cases.kept.release(case_id)


def _count_labelled(case: Case) -> tuple[int, float]:
    """Return how many voxels of a case count, and their weight; those of several raters once for each class."""
    count = int((require_labels(case) >= 0).sum())
    if case.votes is None:
        return count, float(count)
    size, often = (case.votes.count > 0).sum(1), case.votes.patterns()
    return int(size @ often), int(case.votes.cast @ often) / case.votes.total


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
