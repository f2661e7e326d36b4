r"""How far a mask is from the truth, as losses that fall with a margin.

For a structure with the mask P and the truth T of one case, and Euclidean distances d between voxel centres in mm, or
in voxels where no size is known:

- *missed*: the share of T outside the outer mask :math:`\{v : d(v, P) \le m\}` of the margin m. Without T nothing is;
  of an empty P, which no margin makes larger, all is.
- *wrong*: the share of the inner mask :math:`\{v \in P : d(v, P^c) > m\}` that is not T, the largest over this and all
  larger margins, so that it falls. An empty inner mask has no error. The border of the array is no border of P.

Both are steps: constant from one distance that occurs to the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from segcal.cases.masks import MaskCase
from segcal.statistics.boundary import squared_distances
from segcal.statistics.surface import box_of
from segcal.trust.conformal import SLACK
from segcal.trust.table import Floats

Spacing = Sequence[float] | None


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
