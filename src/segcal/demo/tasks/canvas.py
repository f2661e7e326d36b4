r"""A picture and its label map, painted with the same shapes.

Every shape is a signed distance in pixels, negative inside. Its coverage of a pixel is
:math:`\mathrm{clip}(\tfrac12 - d, 0, 1)`: the picture mixes colours with it, as a camera does at a boundary, and the
label is set where the coverage is more than one half. Points are (row, column).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.fields import Field
from segcal.types import IGNORED

Point = tuple[float, float]
Window = tuple[slice, slice]
Colour = Sequence[float] | Field

# Painting with this in place of a label leaves the labels as they are.
KEEP = IGNORED - 1


class Canvas:
    """A picture under construction.

    Attributes:
        image: ``(3, rows, columns)``.
        labels: ``(rows, columns)``.
        rows: the row of each pixel.
        columns: the column of each pixel.
    """

    def __init__(self, height: int, width: int) -> None:
        self.image: Field = np.zeros((3, height, width), np.float32)
        self.labels: NDArray[np.int64] = np.zeros((height, width), np.int64)
        self.rows, self.columns = np.mgrid[:height, :width].astype(np.float32)

    def window(self, points: Sequence[Point], margin: float) -> Window:
        """Return the part of the picture within `margin` of the points; it may be empty."""
        height, width = self.labels.shape
        rows, columns = [point[0] for point in points], [point[1] for point in points]
        top, bottom = int(min(rows) - margin), int(max(rows) + margin) + 2
        left, right = int(min(columns) - margin), int(max(columns) + margin) + 2
        return slice(max(top, 0), min(max(bottom, 0), height)), slice(max(left, 0), min(max(right, 0), width))

    def segment(self, start: Point, end: Point, reach: float) -> tuple[Window, Field]:
        """Return the distance to a line segment, in the window within `reach` of it."""
        window = self.window((start, end), reach)
        row, column = self.rows[window] - start[0], self.columns[window] - start[1]
        down, right = end[0] - start[0], end[1] - start[1]
        square = max(down**2 + right**2, 1e-6)
        along = row * (down / square) + column * (right / square)
        np.minimum(np.maximum(along, 0, out=along), 1, out=along)
        row -= along * down
        column -= along * right
        return window, np.sqrt(row * row + column * column)

    def paint(self, window: Window, coverage: Field, colour: Colour, label: int = KEEP) -> None:
        """Mix `colour` into a window and set the label where the coverage is more than one half."""
        colours = np.asarray(colour, np.float32)
        if colours.ndim == 1:
            colours = colours[:, None, None]
        part = self.image[:, *window]
        part += coverage * (colours - part)
        if label != KEEP:
            self.labels[window][coverage > 0.5] = label

    def line(self, start: Point, end: Point, width: float, colour: Colour, label: int = KEEP) -> None:
        """Paint a line with round ends."""
        window, distance = self.segment(start, end, width / 2 + 1)
        self.paint(window, _coverage(distance - width / 2), colour, label)

    def ellipse(self, centre: Point, radii: Point, colour: Colour, label: int = KEEP, opacity: float = 1.0) -> None:
        """Paint an ellipse with upright axes."""
        low, high = (centre[0] - radii[0], centre[1] - radii[1]), (centre[0] + radii[0], centre[1] + radii[1])
        window = self.window((low, high), 1)
        row, column = (self.rows[window] - centre[0]) / radii[0], (self.columns[window] - centre[1]) / radii[1]
        distance = (np.sqrt(row * row + column * column) - 1) * min(radii)
        self.paint(window, _coverage(distance) * opacity, colour, label)

    def polygon(self, points: Sequence[Point], colour: Colour, label: int = KEEP, opacity: float = 1.0) -> None:
        """Paint a convex polygon, its corners in either order."""
        window = self.window(points, 1)
        rows, columns = self.rows[window], self.columns[window]
        if not rows.size:
            return
        middle = [sum(point[axis] for point in points) / len(points) for axis in (0, 1)]
        sides = []
        for (top, left), (bottom, right) in zip(points, [*points[1:], points[0]], strict=True):
            down, across = right - left, top - bottom  # perpendicular to the side
            length = math.hypot(down, across)
            if length > 1e-6:
                length = -length if down * (middle[0] - top) + across * (middle[1] - left) > 0 else length
                down, across = down / length, across / length
                sides.append(rows * down + columns * across - (top * down + left * across))
        self.paint(window, _coverage(np.maximum.reduce(sides)) * opacity, colour, label)


def _coverage(distance: Field) -> Field:
    return np.minimum(np.maximum(0.5 - distance, 0), 1)
