r"""Margins around masks, learned from labelled masks alone: no probabilities are needed.

A structure has the mask P and the truth T in one case. Euclidean distances d between voxel centres are in mm, or in
voxels where no size is known. Two losses fall with the margin, in steps from one distance that occurs to the next:

- *missed*: the share of T outside the outer mask :math:`\{v : d(v, P) \le m\}` of the margin m. Without T nothing is;
  of an empty P, which no margin makes larger, all is.
- *wrong*: the share of the inner mask :math:`\{v \in P : d(v, P^c) > m\}` that is not T, the largest over this and all
  larger margins, so that it falls. An empty inner mask has no error. The border of the array is no border of P.

Groups (a case that belongs to none is one) are exchangeable with new ones (:mod:`segcal.trust.conformal`). For a
share s:

- *outer margin*: the conformal quantile, at the level, of the smallest margin with which a case misses at most 1 - s.
  Groups are those that have the structure. A case whose mask is empty is covered by no margin, and counts so.
- *inner margin*: the same of the smallest margin from which on at most 1 - s of the inner mask is something else.
  Groups are those whose mask is not empty.
- `on_average`: the smallest margin that bounds the mean loss over groups by 1 - s (conformal risk control).
- *volume*: the volumes of all runs of a case have the mean e and the standard deviation D (0 for one run). With
  :math:`r = D + 0.05 e` the interval is :math:`e \pm q r`, q the quantile of :math:`|t - e| / r` at the level. Groups
  are those in which any run has a mask; of others nothing is said.

Where too few groups have a structure, or more than the level allows are beyond every margin, there is none. Dilation by
conformal margins is that of Mossina and Friedrich (2025, arXiv 2503.05618); mm, groups and inner masks are added.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from segcal.arguments import typed
from segcal.cases.base import CaseError
from segcal.cases.masks import MaskCase, MaskCases
from segcal.cases.parallel import Workers
from segcal.documents import read_struct, write_json
from segcal.errors import ArtifactError, InputError
from segcal.kernels.distance_numba import squared_distances
from segcal.names import class_titles
from segcal.statistics.surface import box_of
from segcal.trust.conformal import (
    SLACK,
    check_level,
    count_draws,
    draws_needed,
    first_controlled,
    mean_over_draws,
    quantile,
)
from segcal.trust.entry import walk
from segcal.trust.sums import Floats

VERSION = 1
SMALLEST = 0.05
Spacing = Sequence[float] | None
Above = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Margin(msgspec.Struct, frozen=True):
    """One structure: margins, and how many scales the volume's interval reaches to each side; None without support.

    `present` groups have the structure, and `masked` groups a mask of it.
    """

    structure: Count
    name: str
    outer: Above | None
    inner: Above | None
    volume: Above | None
    present: int
    masked: int


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """Margins of all structures; made by :func:`segcal.fit_margins`.

    Attributes:
        unit: of margins; volumes are in ml if `volumes_in_ml`, else in voxels.
        level: of cases that are covered, and of intervals.
        share: of the structure, or of the inner mask, that is right; `on_average` over cases if that is asked for.
        runs: label maps of each of the `cases`, which are so many `draws`: groups, or cases that belong to none.
        structures: the margins.
    """

    format: Literal["segcal-margins"] = "segcal-margins"
    version: int = VERSION
    unit: Literal["mm", "voxels"]
    volumes_in_ml: bool
    level: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    on_average: bool
    runs: Count
    cases: Count
    draws: Count
    structures: list[Margin]

    @typed
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a JSON file."""
        return write_json(path, msgspec.to_builtins(self))

    @staticmethod
    @typed
    def load(path: str | os.PathLike[str]) -> "Margins":
        """Read what :meth:`save` wrote."""
        found = read_struct(Path(path), Margins, "Fit the margins again.")
        if found.version != VERSION:
            raise ArtifactError(f"{path} has version {found.version}, but this segcal reads {VERSION}. Update segcal.")
        return found

    def __str__(self) -> str:
        how = "on average over new cases" if self.on_average else f"in {self.level:.4g} of new cases or more"
        return (
            f"{how}, the outer mask covers {self.share:.4g} of the structure or more, and the inner mask lies in it to "
            f"{self.share:.4g} or more, if new cases are like the {self.draws} labelled groups (or single cases)"
        )


class LossSteps(NamedTuple):
    """A loss that falls with the margin: ``losses[k]`` from ``places[k]`` on; the first place is 0."""

    places: Floats
    losses: Floats

    def at(self, margin: float) -> float:
        """Return the loss at a margin."""
        return float(self.losses[np.searchsorted(self.places, margin, side="right") - 1])

    def first(self, most: float) -> float:
        """Return the smallest margin whose loss is at most this; infinite if there is none."""
        enough = np.flatnonzero(self.losses <= most + SLACK)
        return float(self.places[enough[0]]) if len(enough) else np.inf


class MaskErrors(NamedTuple):
    """One structure of one case: losses, None where there is no truth or no mask, and volumes in voxels."""

    missed: LossSteps | None
    wrong: LossSteps | None
    volumes: list[int]
    truth: int


@typed
def fit_margins(
    masks: MaskCases,
    level: float = 0.9,
    share: float = 0.95,
    on_average: bool = False,
    workers: Workers = 1,
    progress: Callable[[str], object] = str,
    failed: Callable[[CaseError], None] | None = None,
) -> Margins:
    """Learn from labelled masks how far masks must be grown or shrunk, and how wide intervals of volumes are.

    Args:
        masks: predicted and true label maps.
        level: of new cases that are covered, and of the intervals of volumes.
        share: of the structure that the outer mask must cover, and of the inner mask that must be right.
        on_average: bound the share on average over cases instead of case by case.
        workers: how many processes measure cases.
        progress: called with the id of each case when it is done.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
    """
    if not 0 < share <= 1 or (on_average and share == 1):
        raise InputError(f"share is {share:g}, but more than 0 and at most 1, on average less, is needed. Use 0.95.")
    if masks.labels is None:
        raise InputError("masks has no labels, but margins are learned from labelled cases. Name their folder.")
    needed = draws_needed(share if on_average else check_level(level))
    found = dict(walk(masks.ids, partial(_measured, masks), workers, failed, progress, needed=True))
    bare = [case_id for case_id, (spacing, _) in found.items() if spacing is None]
    if 0 < len(bare) < len(found):
        raise InputError(
            f"{bare[0]} has no voxel size, but other cases have one. Add it to its header, or leave it out."
        )
    if (draws := count_draws([masks.groups[each] for each in found])) < needed:
        what = f"share {share:g} on average" if on_average else f"level {level:g}"
        raise InputError(f"{draws} cases or groups are labelled, but {what} needs {needed}. Lower it, or label more.")
    labels = sorted({number for _, errors in found.values() for number in errors})
    if not labels:
        raise InputError(f"masks has {len(found)} cases without any structure, but margins need one. Check both.")
    given = tuple(masks.class_names or ())
    names = given + class_titles(None, labels[-1] + 1)[len(given) :]
    learned = []
    for number in labels:
        own = [(errors[number], masks.groups[each]) for each, (_, errors) in found.items() if number in errors]
        learned.append(_margin(number, names[number], own, level, share, on_average))
    return Margins(
        unit="voxels" if bare else "mm", level=level, share=share, on_average=on_average, runs=len(masks.runs),
        volumes_in_ml=all(len(spacing or ()) == 3 for spacing, _ in found.values()),
        cases=len(found), draws=draws, structures=learned,
    )  # fmt: skip


def _measured(masks: MaskCases, case_id: str) -> tuple[Spacing, dict[int, MaskErrors]]:
    case = masks.read(case_id)
    return case.spacing, mask_errors(case)


def _margin(
    number: int, name: str, errors: Sequence[tuple[MaskErrors, str]], level: float, share: float, on_average: bool
) -> Margin:
    """Return the margins of one structure from the errors and groups of cases."""
    found, draws = [], []
    for losses in ([each.missed for each, _ in errors], [each.wrong for each, _ in errors]):
        steps = [each for each in losses if each is not None]
        groups = [group for each, (_, group) in zip(losses, errors, strict=True) if each is not None]
        scores = [each.first(1 - share) for each in steps]
        found.append(controlled(steps, groups, 1 - share) if on_average else quantile(scores, groups, level))
        draws.append(count_draws(groups))
    ran = [(each, group) for each, group in errors if any(each.volumes)]
    scores = [abs(each.truth - float(np.mean(each.volumes))) / volume_scale(each.volumes) for each, _ in ran]
    found.append(quantile(scores, [group for _, group in ran], level))
    outer, inner, volume = (value if math.isfinite(value) else None for value in found)
    return Margin(number, name, outer, inner, volume, *draws)


def controlled(steps: Sequence[LossSteps], groups: Sequence[str], most: float) -> float:
    """Return the smallest margin with an expected loss of at most this; infinite if there is none."""
    places = np.unique(np.concatenate([[], *(each.places for each in steps)]))

    def kept(margin: float) -> bool:
        mean = mean_over_draws([each.at(margin) for each in steps], groups)
        return first_controlled([float(mean)], count_draws(groups), most) is not None

    place = bisect_left(places, True, key=kept)
    return float(places[place]) if place < len(places) else math.inf


def volume_scale(volumes: Sequence[float]) -> float:
    """Return the scale of the error of the mean volume of the runs of a case.

    >>> volume_scale([100]), round(volume_scale([90, 110]), 1)
    (5.0, 19.1)
    """
    return float((np.std(volumes, ddof=1) if len(volumes) > 1 else 0.0) + SMALLEST * np.mean(volumes))


def mask_errors(case: MaskCase) -> dict[int, MaskErrors]:
    """Return the errors of the structures that occur in a case."""
    assert case.truth is not None
    sizes = [dict(zip(*np.unique(each, return_counts=True), strict=True)) for each in (case.truth, *case.runs)]
    found = {}
    for number in sorted({int(number) for each in sizes for number in each if number > 0}):
        truth, *volumes = (int(each.get(number, 0)) for each in sizes)
        mask, right = case.runs[0] == number, case.truth == number
        missed = missed_by(mask, right, case.spacing) if truth else None
        wrong = wrong_in(mask, right | (case.truth < 0), case.spacing) if volumes[0] else None
        found[number] = MaskErrors(missed, wrong, volumes, truth)
    return found


def missed_by(mask: np.ndarray, truth: np.ndarray, spacing: Spacing) -> LossSteps:
    """Return which share of the truth the outer mask misses, by its margin."""
    box = box_of(mask | truth)
    far = distance_from(mask[box], spacing)[truth[box]]
    places = np.unique(np.append(far[np.isfinite(far)], 0.0))
    return LossSteps(places, _above(far, places) / far.size)


def wrong_in(mask: np.ndarray, right: np.ndarray, spacing: Spacing) -> LossSteps:
    """Return which share of the inner mask is not right, at most, at this margin or a larger one."""
    box = box_of(mask, [1] * mask.ndim)
    deep, inside = distance_from(~mask[box], spacing), mask[box]
    places = np.unique(np.append(deep[inside & np.isfinite(deep)], 0.0))
    share = _above(deep[inside & ~right[box]], places) / np.maximum(_above(deep[inside], places), 1)
    return LossSteps(places, np.maximum.accumulate(share[::-1])[::-1])


def distance_from(target: np.ndarray, spacing: Spacing) -> Floats:
    """Return the distance of every voxel from the nearest one of a mask; infinite if there is none."""
    return np.sqrt(squared_distances(target, spacing).astype(np.float64))


def _above(distances: Floats, places: Floats) -> Floats:
    return (len(distances) - np.searchsorted(np.sort(distances), places, side="right")).astype(np.float64)
