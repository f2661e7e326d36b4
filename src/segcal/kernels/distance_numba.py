r"""Squared Euclidean distances of all voxels from the nearest of a set, exactly, on the CPU, in place, axis by axis.

Along the last axis it is the distance from the last one seen, from both ends. Along each other axis the squares
:math:`f(q)` that are there already become :math:`\min_q\, f(q) + s^2 (x - q)^2`, with voxels of size s:

.. math:: s^2 x^2 + \min_q\, \bigl(h(q) - 2 s^2 x q\bigr), \qquad h(q) = f(q) + s^2 q^2,

and the minimum is at a corner of the lower convex hull of the points :math:`(q, h(q))`, further on for larger x. So a
column takes two passes and no division. Columns that are neighbours in memory are copied together.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from segcal.kernels.loops import compiled, part

# Columns that are copied at a time: a line of the cache.
SIDE_BY_SIDE = 16


def squared_distances(target: np.ndarray, spacing: Sequence[float] | None = None) -> np.ndarray:
    """Return the squared Euclidean distance of every voxel from the nearest voxel of `target`; inf if it is empty.

    They are float32: exact in voxels up to a distance of 4096, and within 1e-6 of themselves otherwise.
    """
    shape, sizes = target.shape, [1.0] * target.ndim if spacing is None else [float(size) for size in spacing]
    if not target.any():
        return np.full(shape, np.inf, np.float32)
    found = np.empty(shape, np.float32)
    _rows(np.ascontiguousarray(target).reshape(-1, shape[-1]), sizes[-1], found.reshape(-1, shape[-1]))
    for axis in range(target.ndim - 2, -1, -1):
        _columns(found.reshape(-1, shape[axis], prod(shape[axis + 1 :])), sizes[axis] ** 2)
    return found


@compiled
def _rows(target, size, found):  # type: ignore[no-untyped-def]
    for row in range(len(target)):
        own, out = target[row], found[row]
        far = np.inf
        for x in range(len(own)):
            far = 0.0 if own[x] else far + size
            out[x] = far
        far = np.inf
        for x in range(len(own) - 1, -1, -1):
            far = 0.0 if own[x] else far + size
            least = min(far, np.float64(out[x]))
            out[x] = least * least


@part
def _column(column, scale, place, height):  # type: ignore[no-untyped-def]
    """Replace the squares of one column; `place` and `height` have room for the corners of the hull."""
    last = -1
    for x in range(len(column)):
        if column[x] == np.inf:
            continue
        q, h = np.float64(x), column[x] + scale * x * x
        while last > 0:
            run, rise = place[last] - place[last - 1], height[last] - height[last - 1]
            if rise * (q - place[last]) < (h - height[last]) * run:
                break
            last -= 1
        last += 1
        place[last], height[last] = q, h
    if last < 0:
        return
    at = 0
    for x in range(len(column)):
        slope = 2.0 * scale * x
        least = height[at] - slope * place[at]
        while at < last:
            other = height[at + 1] - slope * place[at + 1]
            if other > least:
                break
            least = other
            at += 1
        column[x] = max(least + scale * x * x, 0.0)


@compiled
def _columns(squares, scale):  # type: ignore[no-untyped-def]
    outer, length, inner = squares.shape
    columns = np.empty((SIDE_BY_SIDE, length), np.float32)
    place, height = np.empty(length), np.empty(length)
    for number in range(outer):
        for first in range(0, inner, SIDE_BY_SIDE):
            wide = min(SIDE_BY_SIDE, inner - first)
            for x in range(length):
                for k in range(wide):
                    columns[k, x] = squares[number, x, first + k]
            for k in range(wide):
                _column(columns[k], scale, place, height)
            for x in range(length):
                for k in range(wide):
                    squares[number, x, first + k] = columns[k, x]
