"""The camera of a street scene, and its background: sky, ground and houses.

World coordinates are metres: X to the right, Y up from the road, Z along it. A point appears at column
``centre + focal X / Z`` and row ``horizon + focal (eye - Y) / Z``.
"""

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.scene import EVERYWHERE, Canvas, Field, Point, Rng, blobs, clouds

HEIGHT, WIDTH = 160, 256
SKY, BUILDING, ROAD, PAVEMENT, PLANTS, POLE, SIGN, CAR, PERSON = range(9)
WALLS = np.array([[0.62, 0.54, 0.46], [0.70, 0.67, 0.62], [0.52, 0.38, 0.32], [0.76, 0.72, 0.60], [0.50, 0.51, 0.53]])


class View:
    """A camera and the cross section of its street, drawn at random."""

    def __init__(self, rng: Rng) -> None:
        self.road = float(rng.uniform(3.4, 5.6))  # half the width of the road
        self.focal = float(rng.uniform(190, 240))  # focal length in pixels
        self.eye = float(rng.uniform(1.3, 1.9))  # height of the camera
        self.horizon = float(rng.normal(66, 5))  # row of the horizon
        self.centre = float(rng.normal(WIDTH / 2, 22))  # column of the vanishing point
        self.left = -self.road - float(rng.uniform(2.0, 5.5))  # X of the left row of houses, negative
        self.right = self.road + float(rng.uniform(2.0, 5.5))  # X of the right row of houses
        self.haze = float(rng.uniform(70, 220))  # distance at which two thirds of an object's contrast are gone
        self.air = np.array([0.74, 0.78, 0.83]) * rng.normal(1, 0.05)  # the colour of the haze

    def place(self, x: float, y: float, z: float) -> Point:
        """Return the row and column of a point."""
        return self.horizon + self.focal * (self.eye - y) / z, self.centre + self.focal * x / z

    def hazy(self, colour: NDArray, z: float | Field) -> NDArray:
        """Return a colour as it looks from a distance."""
        clear = np.exp(-np.asarray(z) / self.haze)
        return np.asarray(colour) * clear + (self.air if colour.ndim == 1 else self.air[:, None, None]) * (1 - clear)


def paint_background(rng: Rng, canvas: Canvas, view: View) -> None:
    """Paint the background, from far to near."""
    _sky(rng, canvas, view)
    _skyline(rng, canvas, view)
    _ground(rng, canvas, view)
    _houses(rng, canvas, view, view.left)
    _houses(rng, canvas, view, view.right)


def _sky(rng: Rng, canvas: Canvas, view: View) -> None:
    height = np.clip((view.horizon - canvas.rows) / view.horizon, 0, 1)
    blue = np.array([0.45, 0.62, 0.86]) if rng.random() < 0.6 else np.array([0.72, 0.75, 0.78])
    cloud = np.clip(0.5 + 0.5 * clouds(rng, canvas.labels.shape, 1.6), 0, 1) * rng.uniform(0.2, 0.9)
    clear = view.air[:, None, None] * (1 - height) + blue[:, None, None] * height
    canvas.paint(EVERYWHERE, np.ones_like(height), clear * (1 - cloud) + 0.95 * cloud, SKY)


def _skyline(rng: Rng, canvas: Canvas, view: View) -> None:
    for kind, colour, tall in ((BUILDING, (0.55, 0.54, 0.55), 10.0), (PLANTS, (0.24, 0.32, 0.20), 7.0)):
        steps = blobs(rng, (1, WIDTH), 3 if kind == PLANTS else 6)[0]
        steps = steps if kind == PLANTS else np.repeat(steps[::11], 11)[:WIDTH]
        top = view.horizon - np.maximum(tall + 5 * steps + rng.normal(0, 4), 0)
        coverage = np.clip(canvas.rows - top + 0.5, 0, 1)
        canvas.paint(EVERYWHERE, coverage, view.hazy(np.array(colour), 90.0), kind)


def _ground(rng: Rng, canvas: Canvas, view: View) -> None:
    below = canvas.rows - view.horizon
    z = view.focal * view.eye / np.maximum(below, 0.5)
    x = (canvas.columns - view.centre) * z / view.focal
    sharp = view.focal / z  # pixels per metre
    seen = np.clip(below + 0.5, 0, 1)
    grain = 0.035 * _tiled(clouds(rng, (64, 64), 0.7), z * 5, x * 9)
    grass = np.array([0.34, 0.42, 0.22]) * rng.normal(1, 0.1)
    canvas.paint(EVERYWHERE, seen, view.hazy(grass[:, None, None] + 1.5 * grain, z), PLANTS)
    stone = np.array([0.56, 0.54, 0.52]) * rng.normal(1, 0.08)
    slabs = 0.04 * ((np.mod(z, 1.2) < 0.12) | (np.mod(x, 1.2) < 0.1)) * np.clip(sharp / 12 - 0.5, 0, 1)
    paved = np.clip(0.5 + np.minimum(x - view.left, view.right - x) * sharp, 0, 1) * seen
    canvas.paint(EVERYWHERE, paved, view.hazy(stone[:, None, None] + grain - slabs, z), PAVEMENT)
    kerb = np.clip(0.5 + (view.road + 0.18 - abs(x)) * sharp, 0, 1) * seen
    canvas.paint(EVERYWHERE, kerb, view.hazy(stone * 1.15, 15.0))
    tar = np.array([0.38, 0.38, 0.39]) * rng.normal(1, 0.14)
    worn = grain + 0.03 * _tiled(blobs(rng, (64, 64), 5), z * 2, x * 6)
    on_road = np.clip(0.5 + (view.road - abs(x)) * sharp, 0, 1) * seen
    canvas.paint(EVERYWHERE, on_road, view.hazy(tar[:, None, None] + worn, z), ROAD)
    dash = np.clip(0.5 + (0.09 - abs(x)) * sharp, 0, 1) * (np.mod(z + rng.uniform(0, 6), 6) < 3) * seen
    canvas.paint(EVERYWHERE, dash * rng.uniform(0.3, 1), view.hazy(np.full((3, 1, 1), 0.85), z))
    edge = rng.uniform(view.left, view.road) * (1 if rng.random() < 0.5 else -1)
    shadow = np.clip(0.5 + (x - edge if edge > 0 else edge - x) * sharp, 0, 1) * seen * rng.uniform(0, 0.55)
    canvas.paint(EVERYWHERE, shadow, (0.10, 0.11, 0.14))


def _houses(rng: Rng, canvas: Canvas, view: View, plane: float) -> None:
    """Paint a row of house fronts that stand along the street at X = `plane`."""
    offset = (canvas.columns[0] - view.centre) * np.sign(plane)
    z = view.focal * abs(plane) / np.maximum(offset, 0.5)
    ends = np.cumsum(rng.uniform(7, 20, 14))
    house = np.searchsorted(ends, z).clip(0, 13)
    tall = rng.uniform(5, 17, 14) * (rng.random(14) > 0.22)  # some places between houses are empty
    wall = WALLS[rng.integers(len(WALLS), size=14)] * rng.normal(1, 0.1, (14, 1))
    pitch, storey = rng.uniform(1.8, 3.5, 14)[house], rng.uniform(2.7, 3.4, 14)[house]
    y = view.eye + (view.horizon - canvas.rows) * z / view.focal
    sharp = view.focal / z
    front = np.clip(0.5 + np.minimum(tall[house] - y, y) * sharp, 0, 1) * (offset > 0.5) * (tall[house] > 0)
    phase_z, phase_y = np.mod(z, pitch) / pitch, np.mod(y, storey) / storey
    window = (abs(phase_z - 0.5) < 0.24) & (abs(phase_y - 0.55) < 0.26) & (y < tall[house] - 0.6)
    shop = (y < 2.9) & (rng.random(14) < 0.4)[house]
    dark = np.where(shop, abs(phase_z - 0.5) < 0.42, window) * np.clip(1.2 - z / 60, 0, 1)
    lit = 1.12 - 0.3 * (rng.random() < 0.5)
    colours = wall[house].T[:, None, :] * lit + 0.03 * clouds(rng, canvas.labels.shape, 0.9)
    glass = np.array([0.22, 0.25, 0.30])[:, None, None] + 0.15 * (rng.random((1, 14)) < 0.3)[0][house]
    colours = colours * (1 - dark) + glass * dark
    canvas.paint(EVERYWHERE, front.astype(np.float32), view.hazy(colours, np.minimum(z, 150)), BUILDING)


def _tiled(texture: Field, rows: Field, columns: Field) -> Field:
    """Return a texture laid on the ground over and over."""
    height, width = texture.shape
    return texture[np.mod(rows, height).astype(int), np.mod(columns, width).astype(int)]
