"""Streets: an image from a car, nine classes, thin and rare ones among them, a void border.

It stands for urban street scenes. Poles, signs and people are small and rare; leaves let the sky through and are
labelled solid; far objects are sometimes forgotten. The annotator's outline is off by a pixel or so; the frame of
the image and the own bonnet have no label. A function per object paints it at a position of the world; `label` is the
class it gets, or KEEP where the labels forget it.

World coordinates are metres: X to the right, Y up from the road, Z along it. A point appears at column
``centre + focal X / Z`` and row ``horizon + focal (eye - Y) / Z``.
"""

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.scene import (
    EVERYWHERE,
    KEEP,
    Canvas,
    Classes,
    Field,
    Point,
    Rng,
    Sample,
    Task,
    blobs,
    clouds,
    displaced,
    smooth,
)
from segcal.types import IGNORED

HEIGHT, WIDTH = 160, 256
SKY, BUILDING, ROAD, PAVEMENT, PLANTS, POLE, SIGN, CAR, PERSON = range(9)
WALLS = np.array([[0.62, 0.54, 0.46], [0.70, 0.67, 0.62], [0.52, 0.38, 0.32], [0.76, 0.72, 0.60], [0.50, 0.51, 0.53]])
# Beyond this distance the labels forget half of all small things.
FAR = 28.0
PAINTS = np.array([[75, 75, 77], [13, 14, 16], [55, 12, 12], [16, 24, 45], [88, 88, 87], [35, 36, 38]]) / 100
CLOTHES = np.array([[0.15, 0.16, 0.22], [0.55, 0.20, 0.18], [0.30, 0.34, 0.42], [0.70, 0.66, 0.60], [0.22, 0.33, 0.24]])


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


def draw(rng: Rng) -> Sample:
    """Draw one image and its labels."""
    view = View(rng)
    canvas = Canvas(HEIGHT, WIDTH)
    paint_background(rng, canvas, view)
    # More things are far away than near: the ground seen grows with distance.
    things = [(float(5.5 * np.exp(rng.uniform(0, 1) ** 0.8 * 2.2)), kind) for kind in _kinds(rng)]
    for distance, kind in sorted(things, reverse=True):  # the nearest last
        _put(rng, canvas, view, kind, distance)
    labels = displaced(canvas.labels, [0.8 * blobs(rng, canvas.labels.shape, 4) for _ in range(2)])
    image = _camera(rng, canvas.image)
    _frame(rng, canvas, image, labels)
    return Sample(image, labels, None)


def _kinds(rng: Rng) -> list[str]:
    """Draw the kinds of things and how many of each; a street is busy or empty, green or bare."""
    busy, green = rng.gamma(2, 0.5), rng.gamma(2, 0.5)
    often = {"tree": 4 * green, "lamp": 2.5, "sign": 2, "parked": 4 * busy, "driving": 1.5 * busy, "person": 3 * busy}
    counts = {kind: int(rng.poisson(rate)) for kind, rate in {**often, "clutter": 0.8}.items()}
    return [kind for kind, count in counts.items() for _ in range(count)]


def _put(rng: Rng, canvas: Canvas, view: View, kind: str, z: float) -> None:
    side = float(rng.choice([-1.0, 1.0]))
    pavement = (abs(view.left) if side < 0 else view.right) - view.road
    forgotten = z > FAR and rng.random() < 0.5
    on_pavement = side * (view.road + pavement * float(rng.uniform(0.2, 0.9)))
    at_kerb = side * (view.road + 0.35)
    if kind == "tree":
        tree(rng, canvas, view, side * (view.road + pavement * float(rng.uniform(0.3, 1.2))), z)
    elif kind == "lamp":
        lamp(rng, canvas, view, at_kerb, z, KEEP if forgotten else POLE)
    elif kind == "sign":
        sign(rng, canvas, view, at_kerb, z, forgotten)
    elif kind == "parked":
        car(rng, canvas, view, side * (view.road - 1.05), z, CAR)
    elif kind == "driving":
        car(rng, canvas, view, float(rng.choice([-0.45, 0.45])) * view.road, z + 4, CAR)
    elif kind == "person":
        across = side * view.road * float(rng.uniform(0, 1)) if rng.random() < 0.2 else on_pavement
        person(rng, canvas, view, across, z, KEEP if forgotten else PERSON)
    else:
        clutter(rng, canvas, view, on_pavement, z)


def _camera(rng: Rng, image: Field) -> Field:
    """Return the scene as the camera shows it: blur, exposure, colour cast, glare and noise."""
    shape = image.shape[1:]
    image = smooth(np.clip(image, 0, 1), float(rng.uniform(0.45, 0.9)), (1, 2))
    exposure = float(rng.lognormal(0, 0.22)) * rng.normal(1, 0.04, (3, 1, 1))
    glare = rng.uniform(0, 0.12) * np.clip(blobs(rng, shape, 40), 0, 2)
    image = (image * exposure) ** float(rng.uniform(0.85, 1.15)) + glare
    return np.clip(image + rng.normal(0, rng.uniform(0.01, 0.03), image.shape), 0, 1).astype(np.float32)


def _frame(rng: Rng, canvas: Canvas, image: Field, labels: Classes) -> None:
    """Blank the uneven border that lens correction leaves, and the own bonnet; neither has a label."""
    bow = rng.uniform(2, 4) + 2.0 * ((canvas.columns - WIDTH / 2) / (WIDTH / 2)) ** 2
    sides = rng.uniform(2, 4) + 2.0 * ((canvas.rows - HEIGHT / 2) / (HEIGHT / 2)) ** 2
    border = np.minimum(canvas.rows, HEIGHT - 1 - canvas.rows) < bow
    border |= np.minimum(canvas.columns, WIDTH - 1 - canvas.columns) < sides
    rise = rng.uniform(4, 14)
    bonnet = canvas.rows > HEIGHT - rise + 10 * ((canvas.columns - WIDTH / 2) / (WIDTH / 2)) ** 2
    image[:, bonnet] = image[:, bonnet] * 0.3 + 0.12
    image[:, border] = 0
    labels[border | bonnet] = IGNORED


def tree(rng: Rng, canvas: Canvas, view: View, x: float, z: float) -> None:
    """Paint a tree; sky shows through its leaves, and the label calls all of it plants."""
    scale = view.focal / z
    tall = float(rng.uniform(4.5, 9))
    foot, fork = view.place(x, 0, z), view.place(x, tall * 0.5, z)
    canvas.line(foot, fork, max(0.3 * scale, 0.8), view.hazy(np.array([0.25, 0.20, 0.16]), z), PLANTS)
    middle = view.place(x, tall * 0.68, z)
    reach = tall * 0.34 * scale
    window = canvas.window([middle], reach * 1.3)
    rows, columns = canvas.rows[window], canvas.columns[window]
    if not rows.size:
        return
    lumps = blobs(rng, (64, 64), 3)[tuple(np.mod(place / scale * 7, 64).astype(int) for place in (rows, columns))]
    leaf = blobs(rng, canvas.labels.shape, 0.9)[window]
    apart = np.hypot((rows - middle[0]) / 1.1, columns - middle[1]) - reach * (0.85 + 0.13 * lumps)
    crown = np.clip(0.5 - apart, 0, 1)
    canvas.labels[window][crown > 0.5] = PLANTS
    green = np.array([0.22, 0.33, 0.15]) * rng.normal(1, 0.15)
    light = 1 + 0.3 * leaf + 0.25 * lumps + 0.25 * (middle[0] - rows) / reach
    holes = np.clip(1.7 - leaf + 1.2 * np.clip(-apart / reach, 0, 1), 0, 1)
    canvas.paint(window, (crown * holes).astype(np.float32), view.hazy(green[:, None, None] * light, z))


def lamp(rng: Rng, canvas: Canvas, view: View, x: float, z: float, label: int = POLE) -> None:
    """Paint a street lamp with an arm over the road."""
    scale = view.focal / z
    tall = float(rng.uniform(5, 8))
    colour = view.hazy(np.array([0.30, 0.32, 0.33]) * rng.normal(1, 0.2), z)
    head = view.place(x - np.sign(x) * 1.4, tall + 0.3, z)
    width = max(0.16 * scale, 1.0)
    canvas.line(view.place(x, 0, z), view.place(x, tall, z), width, colour, label)
    canvas.line(view.place(x, tall, z), head, max(0.1 * scale, 0.8), colour, label)
    canvas.ellipse(head, (max(0.12 * scale, 0.6), max(0.35 * scale, 0.9)), colour * 1.3, label)


def sign(rng: Rng, canvas: Canvas, view: View, x: float, z: float, forgotten: bool) -> None:
    """Paint a traffic sign or light on its post."""
    scale = view.focal / z
    tall, radius = float(rng.uniform(2.2, 2.9)), float(rng.uniform(0.32, 0.5)) * scale
    grey = view.hazy(np.array([0.45, 0.46, 0.47]), z)
    canvas.line(view.place(x, 0, z), view.place(x, tall, z), max(0.09 * scale, 0.9), grey, KEEP if forgotten else POLE)
    row, column = view.place(x, tall, z)
    label = KEEP if forgotten else SIGN
    red, white, blue = np.array([[0.75, 0.10, 0.12], [0.92, 0.92, 0.90], [0.10, 0.25, 0.62]])
    shape = int(rng.integers(4))
    if shape == 0:
        canvas.ellipse((row, column), (radius, radius), view.hazy(red, z), label)
        canvas.ellipse((row, column), (radius * 0.68, radius * 0.68), view.hazy(white, z))
    elif shape == 1:
        points = [(row - radius, column), (row + 0.8 * radius, column - radius), (row + 0.8 * radius, column + radius)]
        canvas.polygon(points, view.hazy(red, z), label)
        inner = [(row - 0.4 * radius, column), (row + 0.5 * radius, column - 0.5 * radius)]
        canvas.polygon([*inner, (row + 0.5 * radius, column + 0.5 * radius)], view.hazy(white, z))
    elif shape == 2:
        _box(canvas, row, column, (radius, radius * 0.8), view.hazy(blue, z), label)
    else:
        _box(canvas, row, column, (radius * 1.3, radius * 0.55), view.hazy(np.array([0.10, 0.11, 0.11]), z), label)
        on = rng.choice([-0.8, 0.8])
        bulb = np.array([0.9, 0.2, 0.1] if on < 0 else [0.2, 0.85, 0.5])
        canvas.ellipse((row + on * radius, column), (radius * 0.3, radius * 0.3), bulb)


def car(rng: Rng, canvas: Canvas, view: View, x: float, z: float, label: int = CAR) -> None:
    """Paint a car that stands along the street: its near end and the side that faces the middle of the image."""
    paint = PAINTS[rng.integers(len(PAINTS))] * rng.normal(1, 0.08)
    half, roof, length = float(rng.uniform(0.8, 0.95)), float(rng.uniform(1.35, 1.8)), float(rng.uniform(3.6, 4.8))
    inner = x - half if x > 0 else x + half
    outer = x + half if x > 0 else x - half
    far, waist, glass = z + length, 0.58 * roof, view.hazy(np.array([0.13, 0.16, 0.19]), z)
    ground = [(inner, 0, z - 0.2), (outer, 0, z - 0.2), (outer, 0, far), (inner * 0.97, 0, far)]
    canvas.polygon([view.place(*corner) for corner in ground], (0.05, 0.05, 0.06), opacity=0.75)
    side = [(inner, 0.22, z), (inner, waist, z), (inner, waist, far), (inner, 0.22, far)]
    cabin = [(inner, waist, z + 0.1), (inner, roof, z + 0.5), (inner, roof, z + 0.6 * length)]
    cabin.append((inner, waist, z + 0.8 * length))
    shade = view.hazy(np.clip(paint * 0.72, 0, 1), z)
    canvas.polygon([view.place(*corner) for corner in side], shade, label)
    canvas.polygon([view.place(*corner) for corner in cabin], glass, label)
    for wheel in (z + 0.17 * length, z + 0.8 * length):
        scale = view.focal / wheel
        canvas.ellipse(view.place(inner, 0.32, wheel), (0.32 * scale, 0.16 * scale), (0.06, 0.06, 0.07), label)
    colour = view.hazy(np.clip(paint, 0, 1), z)
    back = [(x - half, 0.22, z), (x - half, waist, z), (x + half, waist, z), (x + half, 0.22, z)]
    canvas.polygon([view.place(*corner) for corner in back], colour, label)
    top = [(x - half, waist, z), (x - 0.8 * half, roof, z + 0.5), (x + 0.8 * half, roof, z + 0.5), (x + half, waist, z)]
    canvas.polygon([view.place(*corner) for corner in top], colour, label)
    pane = [(x - 0.8 * half, waist, z), (x - 0.66 * half, roof - 0.1, z + 0.4), (x + 0.66 * half, roof - 0.1, z + 0.4)]
    canvas.polygon([view.place(*corner) for corner in [*pane, (x + 0.8 * half, waist, z)]], glass)
    light = np.array([0.8, 0.1, 0.08]) if rng.random() < 0.6 else np.array([0.95, 0.95, 0.85])
    for end in (x - 0.78 * half, x + 0.78 * half):
        scale = view.focal / z
        canvas.ellipse(view.place(end, waist - 0.14, z), (0.09 * scale, 0.13 * scale), light)


def person(rng: Rng, canvas: Canvas, view: View, x: float, z: float, label: int = PERSON) -> None:
    """Paint somebody who walks."""
    scale = view.focal / z
    tall, step = float(rng.uniform(1.5, 1.9)), float(rng.uniform(0.05, 0.3))
    coat, legs = (view.hazy(CLOTHES[rng.integers(len(CLOTHES))] * rng.normal(1, 0.15), z) for _ in range(2))
    for foot in (-step, step):
        hip, sole = view.place(x, 0.5 * tall, z), view.place(x + foot, 0.04, z)
        canvas.line(hip, sole, max(0.15 * scale, 0.9), legs, label)
    waist, neck = view.place(x, 0.5 * tall, z), view.place(x, 0.78 * tall, z)
    canvas.line(waist, neck, max(0.36 * scale, 1.2), coat, label)
    skin = view.hazy(np.array([0.72, 0.55, 0.45]) * rng.uniform(0.5, 1.1), z)
    canvas.ellipse(view.place(x, 0.92 * tall, z), (max(0.14 * scale, 0.7), max(0.11 * scale, 0.6)), skin, label)


def clutter(rng: Rng, canvas: Canvas, view: View, x: float, z: float) -> None:
    """Paint a bin or a box that has no class: its label is void."""
    scale = view.focal / z
    row, column = view.place(x, 0.5, z)
    colour = view.hazy(rng.uniform(0.1, 0.6, 3), z)
    _box(canvas, row, column, (0.5 * scale, float(rng.uniform(0.2, 0.5)) * scale), colour, IGNORED)


def _box(canvas: Canvas, row: float, column: float, half: Point, colour: NDArray, label: int) -> None:
    top, bottom, left, right = row - half[0], row + half[0], column - half[1], column + half[1]
    canvas.polygon([(top, left), (top, right), (bottom, right), (bottom, left)], colour, label)


PALETTE = {
    "sky": (120, 170, 220), "building": (110, 100, 100), "road": (128, 64, 128), "pavement": (220, 130, 180),
    "plants": (90, 140, 50), "pole": (200, 200, 120), "sign": (230, 200, 40), "car": (30, 60, 160),
    "person": (220, 30, 60),
}  # fmt: skip
STREETS = Task("streets", 3, PALETTE, 3, (HEIGHT, WIDTH), draw, background=False)
