"""Distances between the surfaces of the true and of the predicted mask of each class.

A surface voxel lies in the mask and has a face neighbour that does not; outside the array counts as outside. Ignored
voxels are in no mask. From every surface voxel of one mask the distance to the nearest surface voxel of the other is
taken, in both directions. It is in the units of the spacing (voxels, if none is known).

Class 0 has no entry of its own. A class without truth or without prediction has no distances; `missing` says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segcal.kernels.distance_numba import squared_distances

PRESENT, ONE_EMPTY, BOTH_EMPTY = 0, 1, 2


@dataclass(frozen=True)
class Surface:
    """Surface distances of one case, by class; NaN where a mask is empty."""

    largest: np.ndarray  # the Hausdorff distance
    each_95: np.ndarray  # the larger of the 95th percentiles of the two directions
    both_95: np.ndarray  # the 95th percentile of both directions taken together
    missing: np.ndarray  # 0 if both masks exist, 1 if one is empty, 2 if both are
    diagonal: float  # of the case, the largest distance there can be


def surface_distances(
    prediction: np.ndarray, labels: np.ndarray, num_classes: int, spacing: Sequence[float] | None = None
) -> Surface:
    """Measure all classes but the first of one case."""
    size = np.ones(labels.ndim) if spacing is None else np.asarray(spacing, float)
    found = np.full((3, num_classes), np.nan)
    missing = np.full(num_classes, BOTH_EMPTY)
    valid = labels >= 0
    for c in range(1, num_classes):
        truth, guess = (labels == c), (prediction == c) & valid
        missing[c] = (not truth.any()) + (not guess.any())
        if missing[c] == PRESENT:
            box = box_of(truth | guess)
            there = _directed(guess[box], truth[box], size)
            back = _directed(truth[box], guess[box], size)
            tails = [np.percentile(one, 95) for one in (there, back, np.concatenate([there, back]))]
            found[:, c] = max(there.max(), back.max()), max(tails[0], tails[1]), tails[2]
    diagonal = float(np.sqrt((np.square(size) * np.square(np.maximum(np.array(labels.shape) - 1, 0))).sum()))
    return Surface(found[0], found[1], found[2], missing, diagonal)


def _find_surface(mask: np.ndarray) -> np.ndarray:
    """Return the voxels of a mask that have a face neighbour outside it."""
    inside = mask.copy()
    for axis in range(mask.ndim):
        along, kept = np.moveaxis(mask, axis, 0), np.moveaxis(inside, axis, 0)
        kept[1:] &= along[:-1]
        kept[:-1] &= along[1:]
        kept[0] = kept[-1] = False
    return mask & ~inside


def _directed(source: np.ndarray, target: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    return np.sqrt(squared_distances(_find_surface(target), spacing.tolist())[_find_surface(source)].astype(np.float64))


def box_of(mask: np.ndarray, more: Sequence[int] | None = None) -> tuple[slice, ...]:
    """Return where a mask that is not empty lies, with so many voxels more on each side, as far as there are any.

    >>> box_of(np.array([False, False, True, True, False, False]), [1])
    (slice(1, 5, None),)
    """
    others = [tuple(other for other in range(mask.ndim) if other != axis) for axis in range(mask.ndim)]
    ends = [np.flatnonzero(mask.any(each))[[0, -1]] for each in others]
    added = zip(ends, [0] * mask.ndim if more is None else more, strict=True)
    return tuple(slice(max(int(low) - add, 0), int(high) + 1 + add) for (low, high), add in added)
