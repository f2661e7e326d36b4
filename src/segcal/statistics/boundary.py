"""Distance of every voxel from the boundary of the label map, in bands.

A voxel is boundary if a face neighbour inside the array has another label; both sides are, so a boundary is two voxels
thick. The array's border is no boundary, and neither is a pair with an ignored voxel. Distances are Euclidean, in
voxels whatever the spacing, and 0 on the boundary. The default bands are [0, 3), [3, 7), [7, 15), [15, inf).

A label map without any boundary has no distances: its voxels are in no band.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from segcal.errors import InputError
from segcal.kernels.distance_numba import squared_distances
from segcal.statistics.additive import FIXED, AdditiveTable
from segcal.statistics.reliability import Curve

BAND_EDGES = (0.0, 3.0, 7.0, 15.0)
# Squared distances that are counted at a time, and voxels in one step: some tens of megabytes.
COUNTERS = 1 << 20


@dataclass(frozen=True)
class Bands(AdditiveTable):
    """The counts of each band."""

    edges: Annotated[tuple[float, ...], FIXED]  # where the bands begin
    count: np.ndarray  # voxels of each band, int64
    distance: np.ndarray  # the sum of their distances, float64
    curves: dict[int, Curve]  # by the number of bins, (bands + 1, bins); the last row holds voxels in no band


@dataclass(frozen=True)
class LabelBands:
    """The bands of one label map; count and distance as of :class:`Bands`."""

    edges: tuple[float, ...]
    code: np.ndarray  # (voxels,) uint8, the band of each voxel; the number of bands where there is none
    count: np.ndarray
    distance: np.ndarray


def find_boundary(labels: np.ndarray) -> np.ndarray:
    """Return a mask of the voxels that have a face neighbour of another label.

    >>> find_boundary(np.array([0, 0, 1, 1, -1, 2])).astype(int)
    array([0, 1, 1, 0, 0, 0])
    """
    mask = np.zeros(labels.shape, bool)
    for axis in range(labels.ndim):
        along, on = np.moveaxis(labels, axis, 0), np.moveaxis(mask, axis, 0)
        differ = (along[1:] != along[:-1]) & (along[1:] >= 0) & (along[:-1] >= 0)
        on[1:] |= differ
        on[:-1] |= differ
    return mask


def _check_band_edges(edges: Sequence[float]) -> tuple[float, ...]:
    values = tuple(float(edge) for edge in edges)
    rising = all(a < b for a, b in pairwise(values))
    if not rising or not 0 < len(values) <= 250 or values[0] != 0:
        raise InputError(f"band_edges is {values}, but bands begin at 0 and rise. Pass for example (0, 3, 7, 15).")
    return values


def find_bands(labels: np.ndarray, edges: Sequence[float] = BAND_EDGES) -> LabelBands:
    """Return the bands of a label map ``(*space)``; negative labels do not count."""
    edges = _check_band_edges(edges)
    boundary = find_boundary(labels) if labels.ndim else np.zeros(labels.shape, bool)
    if not boundary.any():
        none = np.full(labels.size, len(edges), np.uint8)
        return LabelBands(edges, none, np.zeros(len(edges), np.int64), np.zeros(len(edges)))
    square = squared_distances(boundary).reshape(-1)
    code = np.zeros(labels.size, np.uint8)
    for edge in edges[1:]:
        code += square >= edge * edge
    square[labels.reshape(-1) < 0] = np.inf
    count, distance = np.zeros(len(edges), np.int64), np.zeros(len(edges))
    own = np.arange(len(edges))
    for size, often in _count_distances(square):
        band = np.searchsorted(np.square(edges), size, side="right") - 1
        count += np.bincount(band, weights=often, minlength=len(edges)).astype(np.int64)
        # One term after the other onto what is there: the same bits, in however many pieces the distances come.
        terms = np.concatenate([distance, often * np.sqrt(size)])
        distance = np.bincount(np.concatenate([own, band]), weights=terms, minlength=len(edges)).astype(np.float64)
    return LabelBands(edges, code, count, distance)


def _count_distances(square: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield squared distances, rising, and how often each occurs; infinite ones do not count. `square` is used up.

    They are whole numbers: counting them makes the sum of distances exact and free of any order. One counter for each
    possible one is fast, but their number grows with the square of the image's side. Beyond :data:`COUNTERS` those that
    occur are found by sorting in place, so that no more memory is needed however large the image is.
    """
    pieces = [square[start : start + COUNTERS] for start in range(0, square.size, COUNTERS)]
    largest = max(float(np.max(piece, where=np.isfinite(piece), initial=0)) for piece in pieces)
    if largest < COUNTERS:
        often = np.zeros(round(largest) + 1, np.int64)
        for piece in pieces:
            often += np.bincount(np.rint(piece[np.isfinite(piece)]).astype(np.int64), minlength=len(often))
        yield np.arange(len(often)), often
        return
    square.sort()
    last, times = np.empty(0, np.int64), np.empty(0, np.int64)  # the largest of a piece may go on in the next one
    for piece in pieces:
        size, often = np.unique(np.rint(piece[np.isfinite(piece)]).astype(np.int64), return_counts=True)
        size, where = np.unique(np.concatenate([last, size]), return_inverse=True)
        often = np.bincount(where, weights=np.concatenate([times, often])).astype(np.int64)
        yield size[:-1], often[:-1]
        last, times = size[-1:], often[-1:]
    yield last, times


class BandCache:
    """Keeps the bands of label maps by case id, so that a run computes each once; beyond `max_bytes` the oldest go."""

    def __init__(self, edges: Sequence[float] = BAND_EDGES, max_bytes: int = 1 << 28) -> None:
        self.edges = _check_band_edges(edges)
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, LabelBands] = OrderedDict()

    def bands(self, case_id: str, labels: np.ndarray) -> LabelBands:
        """Return the bands of the label map of this case."""
        found = self._kept.get(case_id)
        if found is None or found.code.size != labels.size:
            found = find_bands(labels, self.edges)
        self._kept[case_id] = found
        self._kept.move_to_end(case_id)
        while len(self._kept) > 1 and sum(bands.code.nbytes for bands in self._kept.values()) > self.max_bytes:
            self._kept.popitem(last=False)
        return found
