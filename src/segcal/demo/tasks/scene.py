r"""The raw material of every task: cases, random fields, and a canvas that paints an image with its label map.

A case is fixed by three numbers, the task's key, a seed and an index, and never stored. The seeds keep what a network
was trained on apart from what it is judged on: no index of :data:`HELD_OUT` is ever seen in training.

On a canvas every shape is a signed distance in pixels, negative inside. Its coverage of a pixel is
:math:`\mathrm{clip}(\tfrac12 - d, 0, 1)`. The image mixes colours with it, as a camera does at a boundary. The label is
set where the coverage is more than one half. Points are (row, column).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segcal.types import IGNORED

Rng: TypeAlias = np.random.Generator
Field: TypeAlias = NDArray[np.floating[Any]]
Classes: TypeAlias = NDArray[np.int64]
Point: TypeAlias = tuple[float, float] | NDArray[np.float64]
Points: TypeAlias = Sequence[Point] | NDArray[np.float64]
Window: TypeAlias = tuple[slice, slice]
Colour: TypeAlias = Sequence[float] | Field

HELD_OUT, TRAINING, VALIDATION = range(3)
EVERYWHERE = (slice(None), slice(None))
# Painting with this in place of a label leaves the labels as they are.
KEEP = IGNORED - 1


class Sample(NamedTuple):
    """One case of a task."""

    image: NDArray[np.float32]  # (channels, *space); images lie in [0, 1]
    labels: Classes  # (*space), IGNORED where a voxel does not count
    mask: NDArray[np.bool_] | None  # False outside the field of view; None where there is data everywhere


class Task(NamedTuple):
    """The facts of a task and the function that draws its cases."""

    name: str
    key: int  # enters the random generator, so that two tasks with one seed share nothing
    palette: dict[str, tuple[int, int, int]]  # the classes, each with an RGB colour for images of the labels
    channels: int
    space: tuple[int, ...]
    draw: Callable[[Rng], Sample]
    spacing: tuple[float, ...] = (1.0, 1.0)  # of voxels, in millimetres or pixels
    background: bool = True  # Dice leaves class 0 out; if False all classes count

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return tuple(self.palette)

    @property
    def num_classes(self) -> int:
        """The number C of classes."""
        return len(self.palette)

    def sample(self, index: int, seed: int = HELD_OUT) -> Sample:
        """Draw the case number `index` of a seed; the same numbers give the same case."""
        return self.draw(np.random.default_rng([self.key, seed, index]))


@lru_cache(maxsize=32)
def _frequency(shape: tuple[int, ...], stretch: tuple[float, ...]) -> Field:
    """Return the radial frequency, in cycles per pixel, of the half spectrum of a real array."""
    axes = [np.fft.fftfreq(size) for size in shape[:-1]] + [np.fft.rfftfreq(shape[-1])]
    grid = np.meshgrid(*(axis * factor for axis, factor in zip(axes, stretch, strict=True)), indexing="ij")
    return np.sqrt(sum(axis**2 for axis in grid)).astype(np.float32)


def _filtered(rng: Rng, shape: tuple[int, ...], gain: Field) -> Field:
    spectrum = np.fft.rfftn(rng.standard_normal(shape, dtype=np.float32)) * gain
    field = np.fft.irfftn(spectrum, s=shape, axes=tuple(range(len(shape)))).astype(np.float32)
    return (field - field.mean()) / (field.std() + 1e-6)


def blobs(rng: Rng, shape: tuple[int, ...], size: float, stretch: Sequence[float] | None = None) -> Field:
    """Return noise of mean 0 and standard deviation 1: white, smoothed by a Gaussian of `size` pixels.

    `stretch` is a factor on `size` along each axis; thick slices need less smoothing across them.
    """
    radius = _frequency(shape, tuple(stretch or (1.0,) * len(shape)))
    return _filtered(rng, shape, np.exp(-2 * (np.pi * size * radius) ** 2))


def clouds(rng: Rng, shape: tuple[int, ...], exponent: float = 1.5) -> Field:
    """Return noise of mean 0 and standard deviation 1 with structure at all sizes (a power law of the frequency)."""
    radius = _frequency(shape, (1.0,) * len(shape))
    return _filtered(rng, shape, np.maximum(radius, 1.0 / max(shape)) ** -exponent)


def smooth(field: Field, sigma: float, axes: Sequence[int]) -> Field:
    """Return the field smoothed by a Gaussian along `axes`; the border is repeated."""
    reach = max(1, int(3 * sigma + 0.5))
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in axes:
        padding = [(0, 0)] * field.ndim
        padding[axis] = (reach, reach)
        padded = np.moveaxis(np.pad(field, padding, mode="edge"), axis, 0)
        total = sum(tap * padded[start : start + field.shape[axis]] for start, tap in enumerate(taps))
        field = np.moveaxis(np.asarray(total, np.float32), 0, axis)
    return np.ascontiguousarray(field)


def displaced(array: NDArray, shifts: Sequence[Field]) -> NDArray:
    """Return `array` read at positions moved by `shifts` (one field per axis), to the nearest pixel."""
    places = np.meshgrid(*(np.arange(size) for size in array.shape), indexing="ij")
    index = tuple(
        np.clip(np.rint(place + shift), 0, size - 1).astype(np.int64)
        for place, shift, size in zip(places, shifts, array.shape, strict=True)
    )
    return array[index]


class Canvas:
    """An image under construction: `image` ``(3, rows, columns)``, `labels`, and the row and column of each pixel."""

    def __init__(self, height: int, width: int) -> None:
        self.image: Field = np.zeros((3, height, width), np.float32)
        self.labels: Classes = np.zeros((height, width), np.int64)
        self.rows, self.columns = np.mgrid[:height, :width].astype(np.float32)

    def window(self, points: Points, margin: float) -> Window:
        """Return the part of the image within `margin` of the points; it may be empty."""
        parts = []
        for places, size in zip(zip(*points, strict=True), self.labels.shape, strict=True):
            first, last = int(min(places) - margin), int(max(places) + margin) + 2
            parts.append(slice(max(first, 0), min(max(last, 0), size)))
        return parts[0], parts[1]

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
        part = self.image[:, *window]
        part += coverage * ((colours[:, None, None] if colours.ndim == 1 else colours) - part)
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

    def polygon(self, points: Points, colour: Colour, label: int = KEEP, opacity: float = 1.0) -> None:
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
