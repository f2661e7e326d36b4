"""Moves: ways in which a map of labels may lie otherwise than that of the scores, and still look like a map.

A map can be turned and still have its shape: mirrored, and with axes of one length exchanged. Together these turns are
the symmetries of the box: 4 of a rectangle, 8 of a square, 48 of a cube, the first of which changes nothing. With more
than three axes (and there would be hundreds) only single axes are mirrored.

Or it can be shifted along an axis.
"""

from dataclasses import dataclass
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

# Of boxes with more axes, only single axes are mirrored.
MOST_AXES = 3


@dataclass(frozen=True)
class Turn:
    """An order of the axes, and which of them are mirrored after that."""

    order: tuple[int, ...]
    mirrored: tuple[int, ...] = ()

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return a view of an array, turned."""
        return np.flip(values.transpose(self.order), self.mirrored)

    @property
    def exchanges(self) -> bool:
        """Whether axes change places."""
        return self.order != tuple(range(len(self.order)))

    def __str__(self) -> str:
        code = f"labels.transpose{self.order}" if self.exchanges else "labels"
        axes = self.mirrored[0] if len(self.mirrored) == 1 else self.mirrored
        return f"numpy.flip({code}, {axes})" if self.mirrored else code


def turns_of(shape: tuple[int, ...]) -> list[Turn]:
    """Return every turn that keeps a shape; the first changes nothing.

    >>> [str(turn) for turn in turns_of((4, 5))]
    ['labels', 'numpy.flip(labels, 1)', 'numpy.flip(labels, 0)', 'numpy.flip(labels, (0, 1))']
    """
    axes = tuple(range(len(shape)))
    long = [axis for axis in axes if shape[axis] > 1]  # the others look the same in a mirror
    if len(shape) > MOST_AXES:
        return [Turn(axes), *(Turn(axes, (axis,)) for axis in long)]
    orders = [order for order in permutations(axes) if tuple(shape[axis] for axis in order) == tuple(shape)]
    subsets = [tuple(np.flatnonzero(flags).tolist()) for flags in product((False, True), repeat=len(shape))]
    return [Turn(order, mirrored) for order in orders for mirrored in subsets if set(mirrored) <= set(long)]


class Shift(NamedTuple):
    """A move of so many voxels along an axis."""

    axis: int
    by: int

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Return the part of an array that stays inside when it moves."""
        window = [slice(None)] * values.ndim
        window[self.axis] = slice(None, -self.by) if self.by > 0 else slice(-self.by, None)
        return values[tuple(window)]

    def onto(self, values: np.ndarray) -> np.ndarray:
        """Return the part of an array on which that comes to lie."""
        return Shift(self.axis, -self.by).taken(values)

    def __str__(self) -> str:
        return f"moved by {self.by:+d} voxel{'' if abs(self.by) == 1 else 's'} along axis {self.axis}"
