"""Roads: an aerial image, two classes, thin connected roads under trees and shadows, labels from a map.

It stands for road extraction from aerial imagery. Its labels are centre lines of a map, drawn with a fixed width. They
lie a few pixels beside the road, some roads are missing, a few exist in the map alone. Gravel, roofs, ploughed land and
railways look like roads and are not. The network is one list of pieces, which the image and the map draw each in its
own way.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.scene import EVERYWHERE, Canvas, Classes, Field, Rng, Sample, Task, blobs, clouds, smooth

HEIGHT, WIDTH = 192, 224
FOREST, MEADOW, CROP, PLOUGHED, TOWN, GRAVEL = range(6)
# RGB of each land cover, how strongly rows of a machine show in it, and its texture.
LAND = np.array([[16, 26, 15], [36, 46, 25], [55, 55, 31], [47, 38, 29], [40, 45, 33], [62, 58, 52]]) / 100
STRIPES = np.array([0.0, 0.02, 0.05, 0.09, 0.0, 0.0])
ROUGH = np.array([0.05, 0.035, 0.03, 0.04, 0.06, 0.05])
ROOFS = np.array([[0.60, 0.32, 0.25], [0.52, 0.50, 0.49], [0.74, 0.72, 0.69], [0.38, 0.33, 0.32], [0.57, 0.55, 0.54]])
ASPHALT, SAND = np.array([0.55, 0.55, 0.56]), np.array([0.66, 0.58, 0.46])
# A map draws every road with one width.
MAP_HALF_WIDTH = 2.8
# Kinds of roads: half the width in pixels, how grey (1) or sandy (0), and how often the map knows one. Tracks are
# narrow, sandy and mapped at random, as in real map data.
MAIN, MINOR, TRACK = range(3)
KINDS = {MAIN: ((3.6, 4.6), 1.0, 0.98), MINOR: ((2.0, 3.0), 0.9, 0.92), TRACK: ((0.9, 1.5), 0.25, 0.55)}


class Road(NamedTuple):
    """One curved piece between two junctions."""

    path: NDArray[np.float64]  # (points, 2), (row, column)
    half_width: float  # of the surface, in pixels
    grey: float  # 1 asphalt, 0 sand
    mapped: bool  # whether the label map has it
    visible: bool  # whether the image has it; a planned road is in the map alone


def draw_network(rng: Rng, height: int, width: int) -> list[Road]:
    """Return a connected network that runs beyond the image on all sides."""
    step = rng.uniform(50, 72)
    rows, columns = int(height / step) + 3, int(width / step) + 3
    turn = rng.uniform(-0.5, 0.5)
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
    nodes = (grid - (np.array([rows, columns]) - 1) / 2 + rng.normal(0, 0.17, grid.shape)) * step
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    nodes = nodes @ rotation.T + [height / 2, width / 2]
    main_row, main_column = rng.integers(1, rows - 1), rng.integers(1, columns - 1)
    roads = []
    for first, second in _connected_edges(rng, rows, columns):
        main = (grid[first] == grid[second]) & (grid[first] == [main_row, main_column])
        kind = MAIN if main.any() else int(rng.choice([MINOR, TRACK], p=[0.68, 0.32]))
        roads.append(_bent(rng, nodes[first], nodes[second], kind))
    return roads


def shifted(rng: Rng, roads: list[Road]) -> list[Road]:
    """Return the network as a map has it: all of it moved by a few pixels, and each piece a little on its own."""
    whole = rng.normal(0, 1.1, 2)
    return [road._replace(path=road.path + whole + rng.normal(0, 0.7, 2)) for road in roads if road.mapped]


def _connected_edges(rng: Rng, rows: int, columns: int) -> list[tuple[int, int]]:
    number = np.arange(rows * columns).reshape(rows, columns)
    edges = [*zip(number[:, :-1].flat, number[:, 1:].flat, strict=True)]
    edges += [*zip(number[:-1].flat, number[1:].flat, strict=True)]
    part = np.arange(rows * columns)
    chosen = []
    for which in rng.permutation(len(edges)):
        first, second = (int(node) for node in edges[which])
        if part[first] != part[second] or rng.random() < 0.35:
            chosen.append((first, second))
            part[part == part[second]] = part[first]
    return chosen


def _bent(rng: Rng, start: NDArray, end: NDArray, kind: int) -> Road:
    along = end - start
    across = np.array([-along[1], along[0]])
    bend = rng.normal(0, 0.10 if kind == TRACK else 0.05) * across
    wave = rng.normal(0, 0.05 if kind == TRACK else 0.02) * across
    t = np.linspace(0, 1, 7)[:, None]
    path = start + t * along + np.sin(np.pi * t) * bend + np.sin(2 * np.pi * t) * wave
    planned = kind == MINOR and rng.random() < 0.03
    widths, paved, known = KINDS[kind]
    half_width, grey = float(rng.uniform(*widths)), float(np.clip(paved + rng.normal(0, 0.1), 0, 1))
    return Road(path, half_width, grey, mapped=planned or bool(rng.random() < known), visible=not planned)


def draw(rng: Rng) -> Sample:
    """Draw one image and its map."""
    canvas = Canvas(HEIGHT, WIDTH)
    land = _land_cover(rng, canvas)
    roads = draw_network(rng, HEIGHT, WIDTH)
    _railway(rng, canvas)
    distance = _surface(rng, canvas, [road for road in roads if road.visible])
    _houses(rng, canvas, roads, land, distance)
    _cars(rng, canvas, roads)
    _trees(rng, canvas, land, distance)
    image = _light(rng, canvas.image)
    mapped, _ = _distance(canvas, shifted(rng, roads), MAP_HALF_WIDTH)
    return Sample(image, (mapped < 0).astype(np.int64), None)


def _land_cover(rng: Rng, canvas: Canvas) -> Classes:
    shape = canvas.labels.shape
    count = int(rng.integers(9, 16))
    seeds = rng.uniform([-10, -10], [HEIGHT + 10, WIDTH + 10], (count, 2)).astype(np.float32)
    rows = canvas.rows + 4 * blobs(rng, shape, 9)
    columns = canvas.columns + 4 * blobs(rng, shape, 9)
    # City-block distance in a turned frame: fields have straight, roughly perpendicular sides.
    turn = rng.uniform(0, np.pi)
    cos, sin = np.cos(turn), np.sin(turn)
    offsets = [(rows - row, columns - column) for row, column in seeds]
    apart = np.stack([np.maximum(abs(r * cos + c * sin), abs(c * cos - r * sin)) for r, c in offsets])
    cell = apart.argmin(axis=0)
    nearest = np.partition(apart, 1, axis=0)[:2]
    kinds = rng.choice(6, size=count, p=[0.22, 0.19, 0.17, 0.13, 0.22, 0.07])
    land = kinds[cell]
    tint = LAND[kinds] * rng.normal(1, 0.10, (count, 1)) + rng.normal(0, 0.02, (count, 3))
    angle, period = rng.uniform(0, np.pi, count)[cell], rng.uniform(4, 8, count)[cell]
    rowing = np.sin(2 * np.pi / period * (rows * np.cos(angle) + columns * np.sin(angle)))
    texture = STRIPES[land] * rowing + ROUGH[land] * (0.7 * clouds(rng, shape, 0.8) + 0.5 * blobs(rng, shape, 0.7))
    canvas.image += (tint[cell].transpose(2, 0, 1) + texture).astype(np.float32)
    hedge = np.clip(1.4 - abs(nearest[1] - nearest[0]), 0, 1) * (0.55 + 0.25 * blobs(rng, shape, 6) > 0.45)
    canvas.paint(EVERYWHERE, hedge.astype(np.float32) * 0.8, LAND[FOREST])
    return land


def _railway(rng: Rng, canvas: Canvas) -> None:
    if rng.random() > 0.35:
        return
    start, end = (float(rng.uniform(0, HEIGHT)), -5.0), (float(rng.uniform(0, HEIGHT)), WIDTH + 5.0)
    canvas.line(start, end, 5.5, (0.52, 0.48, 0.44))
    canvas.line(start, end, 1.2, (0.34, 0.30, 0.29))


def _distance(canvas: Canvas, roads: list[Road], half_width: float | None = None) -> tuple[Field, Classes]:
    """Return the distance to the edge of the nearest road, negative on it, and the number of that road."""
    distance = np.full(canvas.labels.shape, 10, np.float32)
    which = np.zeros(canvas.labels.shape, np.int64)
    for number, road in enumerate(roads):
        half = road.half_width if half_width is None else half_width
        for start, end in pairwise(road.path):
            window, apart = canvas.segment(start, end, half + 10)
            nearer = apart - half < distance[window]
            which[window][nearer] = number
            distance[window][nearer] = apart[nearer] - half
    return distance, which


def _surface(rng: Rng, canvas: Canvas, roads: list[Road]) -> Field:
    distance, which = _distance(canvas, roads)
    tone = rng.normal(1, 0.08, len(roads))
    grey = np.array([[road.grey] for road in roads])
    colours = (grey * ASPHALT + (1 - grey) * SAND) * tone[:, None]
    wear = 0.03 * blobs(rng, canvas.labels.shape, 1.2) + 0.03 * blobs(rng, canvas.labels.shape, 12)
    shoulder = np.clip(1.5 - abs(distance - 0.5), 0, 1) * 0.35
    canvas.paint(EVERYWHERE, shoulder.astype(np.float32), SAND * 0.85)
    canvas.paint(EVERYWHERE, np.clip(0.5 - distance / 1.5, 0, 1), colours[which].transpose(2, 0, 1) + wear)
    return distance


def _houses(rng: Rng, canvas: Canvas, roads: list[Road], land: Classes, distance: Field) -> None:
    for road in roads:
        for start, end in pairwise(road.path):
            if not (-15 < start[0] < HEIGHT + 15 and -15 < start[1] < WIDTH + 15):
                continue
            along = (end - start) / max(np.hypot(*(end - start)), 1e-6)
            across = np.array([-along[1], along[0]])
            for side in (-1, 1):
                centre = start + side * across * (road.half_width + rng.uniform(6, 11)) + along * rng.uniform(-2, 2)
                row, column = (int(value) for value in centre)
                if not (0 <= row < HEIGHT and 0 <= column < WIDTH) or distance[row, column] < 4.5:
                    continue
                if rng.random() < (0.75 if land[row, column] == TOWN else 0.05):
                    _house(rng, canvas, centre, along, across)


def _house(rng: Rng, canvas: Canvas, centre: NDArray, along: NDArray, across: NDArray) -> None:
    length, depth = along * rng.uniform(3, 6), across * rng.uniform(2.2, 3.8)
    roof = ROOFS[rng.integers(len(ROOFS))] * rng.normal(1, 0.08)
    ends = [centre + length + depth, centre + length - depth, centre - length - depth, centre - length + depth]
    corners = np.array(ends)
    canvas.polygon(corners + np.array([2.0, 2.5]), (0.14, 0.15, 0.16), opacity=0.6)
    if rng.random() < 0.4:  # a paved yard of the colour of the street
        canvas.polygon(corners + 1.5 * (depth + length * 0.4), ASPHALT * rng.normal(1, 0.1))
    canvas.polygon(corners, roof * 1.08)
    canvas.polygon([centre + length, centre - length, corners[2], corners[1]], roof * 0.82)


def _cars(rng: Rng, canvas: Canvas, roads: list[Road]) -> None:
    for road in roads:
        if not road.visible or road.grey < 0.6 or rng.random() < 0.5:
            continue
        place = int(rng.integers(len(road.path) - 1))
        along = road.path[place + 1] - road.path[place]
        along /= max(np.hypot(*along), 1e-6)
        middle = road.path[place] + np.array([-along[1], along[0]]) * road.half_width * 0.4
        paint = rng.choice([0.12, 0.3, 0.85, 0.95]) * np.ones(3) + rng.normal(0, 0.06, 3)
        canvas.line(middle, middle + along * 2.2, 1.8, np.clip(paint, 0, 1))


def _trees(rng: Rng, canvas: Canvas, land: Classes, distance: Field) -> None:
    """Paint trees over everything: thick in forests, in rows along roads, some in towns; they hide what is below."""
    density = np.array([0.02, 0.0004, 0.0002, 0.0001, 0.0035, 0.0005])[land]
    density = np.where((distance < 0) & (land == FOREST), 0.006, density)
    lined = (abs(distance - 3) < 2) & (blobs(rng, land.shape, 14) > 0.9)
    rows, columns = np.nonzero(rng.random(land.shape) < np.where(lined, 0.02, density))
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        radius = float(rng.uniform(2.0, 4.8))
        green = np.array([0.17, 0.27, 0.14]) * rng.normal(1, 0.16) + rng.normal(0, 0.012, 3)
        canvas.ellipse((row + radius * 0.6, column + radius * 0.8), (radius, radius), (0.09, 0.11, 0.10), opacity=0.55)
        canvas.ellipse((row, column), (radius * rng.uniform(0.8, 1.1), radius), green, opacity=0.95)
        lit = (row - 0.35 * radius, column - 0.35 * radius)
        canvas.ellipse(lit, (radius * 0.5, radius * 0.5), green * 1.45, opacity=0.7)


def _light(rng: Rng, image: Field) -> Field:
    shape = image.shape[1:]
    shade = 1 - 0.38 * np.clip(blobs(rng, shape, 24) - 0.9, 0, 1) + 0.04 * blobs(rng, shape, 40)
    image = smooth(image, float(rng.uniform(0.55, 0.95)), (1, 2)) * shade
    gain = rng.normal(1, 0.09) * rng.normal(1, 0.03, (3, 1, 1))
    haze = rng.uniform(0, 0.09)
    image = image * gain * (1 - haze) + haze + rng.normal(0, rng.uniform(0.012, 0.03), image.shape)
    return np.clip(image, 0, 1).astype(np.float32)


ROADS = Task("roads", 1, {"other": (60, 70, 60), "road": (250, 200, 80)}, 3, (HEIGHT, WIDTH), draw)
