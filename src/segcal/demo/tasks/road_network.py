"""A connected network of roads, as a list of pieces that a picture and a map draw each in its own way."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

# What becomes of a road: its share, half its width in pixels, how grey (1) or sandy (0) it is, and how often the
# map knows it. Tracks are narrow, sandy and mapped at random, as in real map data.
MAIN, MINOR, TRACK = 0, 1, 2
HALF_WIDTH = {MAIN: (3.6, 4.6), MINOR: (2.0, 3.0), TRACK: (0.9, 1.5)}
PAVED = {MAIN: 1.0, MINOR: 0.9, TRACK: 0.25}
MAPPED = {MAIN: 0.98, MINOR: 0.92, TRACK: 0.55}


@dataclass(frozen=True)
class Road:
    """One curved piece between two junctions.

    Attributes:
        path: ``(points, 2)``, (row, column).
        half_width: of the surface, in pixels.
        grey: 1 asphalt, 0 sand.
        mapped: whether the label map has it.
        visible: whether the picture has it; a planned road is in the map alone.
    """

    path: NDArray[np.float64]
    half_width: float
    grey: float
    mapped: bool
    visible: bool = True


def draw_network(rng: np.random.Generator, height: int, width: int) -> list[Road]:
    """Return a connected network that runs beyond the picture on all sides."""
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
        one_row = grid[first, 0] == grid[second, 0] == main_row
        one_column = grid[first, 1] == grid[second, 1] == main_column
        kind = MAIN if one_row or one_column else int(rng.choice([MINOR, TRACK], p=[0.68, 0.32]))
        roads.append(_bent(rng, nodes[first], nodes[second], kind))
    return roads


def shifted(rng: np.random.Generator, roads: list[Road]) -> list[Road]:
    """Return the network as a map has it: all of it moved by a few pixels, and each piece a little on its own."""
    whole = rng.normal(0, 1.1, 2)
    return [replace(road, path=road.path + whole + rng.normal(0, 0.7, 2)) for road in roads if road.mapped]


def _connected_edges(rng: np.random.Generator, rows: int, columns: int) -> list[tuple[int, int]]:
    number = np.arange(rows * columns).reshape(rows, columns)
    edges = [*zip(number[:, :-1].flat, number[:, 1:].flat, strict=True)]
    edges += [*zip(number[:-1].flat, number[1:].flat, strict=True)]
    part = np.arange(rows * columns)
    chosen = []
    for which in rng.permutation(len(edges)):
        first, second = (int(node) for node in edges[which])
        joins = part[first] != part[second]
        if joins or rng.random() < 0.35:
            chosen.append((first, second))
            part[part == part[second]] = part[first]
    return chosen


def _bent(rng: np.random.Generator, start: NDArray, end: NDArray, kind: int) -> Road:
    along = end - start
    across = np.array([-along[1], along[0]])
    bend = rng.normal(0, 0.10 if kind == TRACK else 0.05) * across
    wave = rng.normal(0, 0.05 if kind == TRACK else 0.02) * across
    t = np.linspace(0, 1, 7)[:, None]
    path = start + t * along + np.sin(np.pi * t) * bend + np.sin(2 * np.pi * t) * wave
    planned = kind == MINOR and rng.random() < 0.03
    return Road(
        path=path,
        half_width=float(rng.uniform(*HALF_WIDTH[kind])),
        grey=float(np.clip(PAVED[kind] + rng.normal(0, 0.1), 0, 1)),
        mapped=planned or bool(rng.random() < MAPPED[kind]),
        visible=not planned,
    )
