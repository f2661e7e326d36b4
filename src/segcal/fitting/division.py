r"""Dividing cases into those that a fit learns from, those it is chosen on, and those that are left for judging it.

The split is seeded. Cases of one group (patient, video, site) stay together. Groups are taken whole, in random order,
as long as that brings the subset closer to its share. Calibration and validation both get at least one.
Folds are parts of about the same size, each to be held out once. With validation cases there is one fold: fitted to the
calibration cases, measured on those.

**Sites** are sites that differ, each to be held out once: what a calibrator is worth where it has not been. They are
declared (:attr:`segcal.cases.Cases.sites`); more than five are joined to five. Without them, *clusters* of groups are
made from the predictions, which needs no labels. With :math:`\bar p_g` the mean predicted class frequencies of group g,
the groups are sorted along the direction in which :math:`\sqrt{\bar p_g}` (Hellinger's distance) varies most. They are
cut into three parts of equal size, or fewer of at least three groups. The folds at the ends then have class frequencies
that the others have not seen.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from segcal.cases.base import Cases, Split
from segcal.errors import InputError
from segcal.fitting.config import FitConfig
from segcal.fitting.request import FitData
from segcal.fitting.voxels import HeldVoxels, Voxels, VoxelSource, draw, join, systematic

# Voxels of all cases together that a fit to a fold sees: what is compared are settings, not last digits.
FOLD_VOXELS = 1 << 15
# Voxels of a case that is held out: what is compared on it are settings, on the same voxels, and cases differ by more.
HELD_VOXELS = 1 << 13
# Folds that a reference may have: every new case is calibrated once for each.
MOST_FOLDS = 10
CLUSTERS = 3
# A part of fewer groups says nothing of its own.
LEAST_GROUPS = 3
MOST_PARTS = 5


class Fold(NamedTuple):
    """Voxels to fit to, the cases they come from, and voxels to measure on."""

    learn: VoxelSource
    cases: Cases
    held: VoxelSource


def divide(cases: Cases, val: float, test: float = 0.0, seed: int = 0) -> Split:
    """Return calibration, validation and test cases; what is in neither of the last two is for calibration.

    Args:
        cases: all cases, with the groups they know.
        val: share for validation of the cases that are not for the test.
        test: share of all cases that the fit does not see at all.
        seed: seed of the split.

    >>> from segcal import ArrayCases
    >>> cases = ArrayCases([np.zeros((2, 3), "float32")] * 6, [np.zeros(3, int)] * 6)
    >>> [len(part) for part in divide(cases, val=1 / 3, test=1 / 6)]
    [3, 2, 1]
    """
    if not (0 <= val < 1 and 0 <= test < 1):
        raise InputError(
            f"the shares of validation and test cases are {val:g} and {test:g}, but both must be at least 0 and below "
            "1. What is left is for calibration."
        )
    groups = _shuffled(cases, seed)
    needed = 1 + (val > 0) + (test > 0)
    if len(groups) < needed:
        what = "groups, which are kept whole" if cases.groups else "cases"
        raise InputError(
            f"there are {len(groups)} {what}, but {needed} are needed to divide them. Add cases, bring validation "
            "cases of their own, or fit one calibrator on all of them."
        )
    held, groups = _take(groups, test * len(cases), leave=1 + (val > 0)) if test else ([], groups)
    chosen, groups = _take(groups, val * (len(cases) - len(held)), leave=1) if val else ([], groups)
    learned = [case_id for group in groups for case_id in group]
    return Split(cases.subset(learned), cases.subset(chosen), cases.subset(held))


def divide_folds(cases: Cases, most: int, seed: int = 0) -> list[set[str]]:
    """Return the ids of each fold: at most `most` parts of whole groups, of about the same number of cases.

    >>> from segcal import ArrayCases
    >>> cases = ArrayCases([np.zeros((2, 3), "float32")] * 6, groups=list("aabbcd"))
    >>> sorted(len(part) for part in divide_folds(cases, 3))
    [2, 2, 2]
    """
    groups = sorted(_shuffled(cases, seed), key=len, reverse=True)  # the large ones first; equal ones as drawn
    folds: list[set[str]] = [set() for _ in range(min(most, len(groups)))]
    for group in groups:
        min(folds, key=len).update(group)
    return folds


def equal_folds(cases: Cases, least: int, seed: int = 0) -> list[set[str]]:
    """Return the ids of folds that have the same number of groups; the few groups that are left over are in none.

    Of `least` to :data:`MOST_FOLDS` folds, the fewest that leave out the fewest groups; one group a fold if there are
    no more. Which groups go together depends on the seed alone, and not on their sizes.

    >>> from segcal import ArrayCases
    >>> cases = ArrayCases([np.zeros((2, 3), "float32")] * 14, groups=list("aabcdefghijklm"))
    >>> len(equal_folds(cases, 5)), sum(map(len, equal_folds(cases, 5))) >= 12
    (6, True)
    """
    groups = _shuffled(cases, seed)
    least = min(least, len(groups))
    most = max(least, min(MOST_FOLDS, len(groups)))
    folds = max(range(least, most + 1), key=lambda number: (len(groups) // number * number, -number))
    size = len(groups) // folds
    return [{name for group in groups[k * size : (k + 1) * size] for name in group} for k in range(folds)]


def count_folds(cases: Cases, validation: VoxelSource | None, most: int) -> int:
    """Return how many folds there are; 0 if nothing can be held out."""
    if validation is not None:
        return 1
    folds = len(divide_folds(cases, most, 0))
    return folds if folds > 1 else 0


def each_fold(
    cases: Cases, source: VoxelSource, validation: VoxelSource | None, most: int, seed: int
) -> Iterator[Fold]:
    """Yield the folds, at most so many, one in memory at a time; none if there is one group and no validation.

    The seed is that of the split and of the voxels that are left out.
    """
    if validation is not None:
        yield Fold(thinned(source, FOLD_VOXELS, seed), cases, thinned_cases(validation, HELD_VOXELS, seed))
        return
    parts = divide_folds(cases, most, seed)
    yield from folds_by(cases, source, parts if len(parts) > 1 else [], seed)


def folds_by(cases: Cases, source: VoxelSource, parts: Iterable[Collection[str]], seed: int) -> Iterator[Fold]:
    """Yield one fold for each part of the cases, in which it is held out."""
    for part in parts:
        learned = [case_id for case_id in cases.ids if case_id not in part]
        learn, held = source.subset(learned), source.subset(part)
        if learn.used and held.used:
            yield Fold(thinned(learn, FOLD_VOXELS, seed), cases.subset(learned), thinned_cases(held, HELD_VOXELS, seed))


def folds_of(data: FitData, config: FitConfig) -> Iterator[Fold]:
    """Yield the folds of data that have been read, as a configuration asks for them."""
    return each_fold(data.cases, data.source, data.validation, config.folds, config.seed)


def thinned(source: VoxelSource, most: int, seed: int) -> VoxelSource:
    """Return about `most` voxels of a source, as many of each case as its share; all if it holds no more."""
    if source.used <= most:
        return source
    return _gathered(source.single_cases(), lambda used: max(1, round(most * used / source.used)), seed)


def thinned_cases(source: VoxelSource, most: int, seed: int) -> VoxelSource:
    """Return about `most` voxels of every case; all of those that have no more."""
    parts = source.single_cases()
    return source if all(part.used <= most for part in parts) else _gathered(parts, lambda used: most, seed)


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


def _gathered(parts: list[VoxelSource], quota: Callable[[int], int], seed: int) -> VoxelSource:
    kept = [gather(part, quota(part.used), seed) for part in parts]
    counts = {part.ids[0]: voxels.labels.numel() for part, voxels in zip(parts, kept, strict=True)}
    return HeldVoxels(join(kept), counts)


def group_names(cases: Cases, ids: Sequence[str]) -> list[str]:
    """Return the group of each case; a case without one is a group of its own."""
    return [cases.groups.get(case_id, f"\0{case_id}") for case_id in ids]


def groups_of(cases: Cases) -> dict[str, str]:
    """Return the group of every case."""
    return dict(zip(cases.ids, group_names(cases, cases.ids), strict=True))


def _shuffled(cases: Cases, seed: int) -> list[list[str]]:
    members: dict[str, list[str]] = {}
    for case_id, group in groups_of(cases).items():
        members.setdefault(group, []).append(case_id)
    groups = list(members.values())
    return [groups[index] for index in np.random.default_rng(seed).permutation(len(groups))]


def _take(groups: Sequence[list[str]], wanted: float, leave: int) -> tuple[list[str], list[list[str]]]:
    """Return the cases of the groups that come closest to a wanted number, and the groups that remain."""
    taken: list[str] = []
    rest: list[list[str]] = []
    for number, group in enumerate(groups):
        enough = len(groups) - number + len(rest) > leave  # others remain if this group goes
        closer = abs(len(taken) + len(group) - wanted) < abs(len(taken) - wanted)
        if enough and closer:
            taken += group
        else:
            rest.append(group)
    if not taken:  # every group is more than twice as large as the part
        smallest = min(rest, key=len)
        rest.remove(smallest)
        taken = list(smallest)
    return taken, rest


class Sites(NamedTuple):
    """The sites or clusters: their names and cases; and whether they were declared, or found among the predictions."""

    parts: dict[str, tuple[str, ...]]
    declared: bool

    @property
    def errors(self) -> float:
        """Return how many standard errors are noise."""
        return 1.0 if self.declared else 2.0

    def groups(self, cases: Cases) -> dict[str, int]:
        """Return how many groups each site has."""
        return {name: len(set(group_names(cases, part))) for name, part in self.parts.items()}

    def folds(self, data: FitData, seed: int) -> list[Fold]:
        """Return the folds of data: each site held out once."""
        return list(folds_by(data.cases, data.source, self.parts.values(), seed))


def find_sites(data: FitData, seed: int = 0) -> Sites | None:
    """Return the parts of the calibration cases; None if they are too few groups to differ."""
    cases = data.cases
    declared = [cases.sites.get(case_id, "") for case_id in cases.ids]
    if len(set(declared)) > 1:
        return Sites(_collected(cases.ids, _joined(declared)), True)
    groups = groups_of(cases)
    names = list(dict.fromkeys(groups.values()))
    count = min(CLUSTERS, len(names) // LEAST_GROUPS)
    if count < 2:
        return None
    found = dict(thinned(data.source, FOLD_VOXELS, seed).by_case(composition))
    rows = []
    for name in names:
        own = [found[case_id] for case_id, group in groups.items() if group == name]
        rows.append(np.sqrt(np.mean(own, axis=0)))
    cut = np.array_split(_along_main_axis(np.array(rows)), count)
    cluster = {names[index]: f"cluster {number + 1}" for number, part in enumerate(cut) for index in part}
    return Sites(_collected(cases.ids, [cluster[group] for group in groups.values()]), False)


def composition(case_id: str, batches: Iterable[Voxels]) -> np.ndarray:
    """Return the mean predicted class frequencies of the voxels of a case."""
    total, weight = np.zeros(1), 0.0
    for voxels in batches:
        total = total + (torch.softmax(voxels.logits.double(), 0) @ voxels.weight.double()).numpy()
        weight += float(voxels.weight.sum(dtype=torch.float64))
    return total / max(weight, 1e-300)


def _along_main_axis(rows: np.ndarray) -> np.ndarray:
    """Return the order of rows along the direction in which they vary most; equal ones as they come."""
    centred = rows - rows.mean(0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    axis = axis * np.sign(axis[np.abs(axis).argmax()])  # a direction has two signs
    return np.argsort(np.round(centred @ axis, 12), kind="stable")


def _joined(names: Sequence[str]) -> list[str]:
    """Return the part of each site: its own, or one of five that are about equally large."""
    sizes = {name: names.count(name) for name in dict.fromkeys(names)}
    if len(sizes) <= MOST_PARTS:
        return list(names)
    parts: list[list[str]] = [[] for _ in range(MOST_PARTS)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(parts, key=lambda part: sum(sizes[each] for each in part)).append(name)
    of = {name: " + ".join(part) for part in parts for name in part}
    return [of[name] for name in names]


def _collected(ids: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    parts: dict[str, list[str]] = {}
    for case_id, name in sorted(zip(ids, names, strict=True), key=lambda pair: pair[1]):
        parts.setdefault(name, []).append(case_id)
    return {name: tuple(own) for name, own in parts.items()}
