r"""Tiles of cases, for calibrators that see neighbours: drawn as :mod:`segcal.fitting.voxels` draws voxels.

A grid with a random origin divides every plane of a case (the whole volume, for kernels in 3-D) into tiles. About
`quota` of them are drawn, difficult ones more often. Each stands for 1 / p tiles, with p the probability that it was
drawn. So sums over them estimate sums over the case without bias. Every tile carries the margin that its voxels see,
which continues the image at its border as it does in use. Ignored voxels, and those of a tile that lie beyond the
image, have the label :data:`segcal.types.IGNORED`.

Cases are read one at a time. What is kept of them is bounded, and reserved in one piece before the first is read.
"""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators.local_temperature import SeesNeighbours, with_margin
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.parallel import Failures
from segcal.checks import check_planes, check_volume
from segcal.fitting.config import FitConfig
from segcal.fitting.progress import Report, silent
from segcal.fitting.voxels import draw_hard, hardness, refuse_nothing, require_labels
from segcal.types import IGNORED

# Side of a tile, by the number of axes that kernels run over: small tiles show more different positions.
SIDE = {2: 32, 3: 16}
# Voxels of a case that one sample takes if all of them are to be used in the course of time.
VOXELS_A_DRAW = 20_000


class Window(NamedTuple):
    """A tile: how many of the last axes of space it extends over, its side, the margin that is added to each end.

    `image_channels` is that of the image that is cut with it; 0 for none.
    """

    axes: int
    side: int
    margin: int
    image_channels: int = 0

    @classmethod
    def of(cls, calibrator: SeesNeighbours) -> "Window":
        """Return the window that suits a calibrator."""
        widths = [width for width in calibrator.margin(3) if width]
        return cls(len(widths), SIDE[len(widths)], widths[0], calibrator.options.get("image_channels", 0))

    @property
    def inner(self) -> tuple[int, ...]:
        """Return the shape of a tile."""
        return (self.side,) * self.axes

    @property
    def outer(self) -> tuple[int, ...]:
        """Return the shape of a tile with its margin."""
        return (self.side + 2 * self.margin,) * self.axes


class Tiles(NamedTuple):
    """Tiles of one case or, with a further axis in front, of several.

    Attributes:
        logits: ``(tiles, classes, *outer)``; the image, if there is one, likewise with its channels.
        labels: ``(tiles, *inner)`` int32.
        inside: ``(tiles, *inner)`` bool, whether a voxel belongs to the image.
        weight: ``(tiles,)``, how many tiles each stands for; 0 for room that is not used.
    """

    logits: Tensor
    labels: Tensor
    inside: Tensor
    weight: Tensor
    image: Tensor | None

    def at(self, *index: int | slice | Tensor) -> "Tiles":
        """Return a fraction, of all that it has."""
        image = None if self.image is None else self.image[index]
        return Tiles(self.logits[index], self.labels[index], self.inside[index], self.weight[index], image)

    def empty(self) -> None:
        """Mark all room as not used."""
        self.logits.zero_()
        self.labels.fill_(IGNORED)
        self.inside.fill_(False)
        self.weight.zero_()


class TileSource:
    """Draws tiles of all cases, as often as it is asked to.

    Attributes:
        available: how many labelled voxels the cases have; known after sampling.
    """

    def __init__(self, cases: Cases, window: Window, config: FitConfig) -> None:
        cases.require_one_rater("a calibrator that learns from whole neighbourhoods, such as lts,")
        self._cases, self._window, self._seed = cases, window, config.seed
        self.available = 0
        channels, size = cases.num_classes + window.image_channels, window.side**window.axes
        one_tile = 4 * channels * math.prod(window.outer) + 5 * size + 4
        wanted = VOXELS_A_DRAW if config.voxels == "all" else config.voxels
        self._quota = max(1, min(-(-wanted // size), config.memory // len(cases) // one_tile - 1))
        room = (len(cases), self._quota + 1)  # a sample may give one more than was asked for
        self._tiles = Tiles(
            logits=torch.empty(*room, cases.num_classes, *window.outer),
            labels=torch.empty(*room, *window.inner, dtype=torch.int32),
            inside=torch.empty(*room, *window.inner, dtype=torch.bool),
            weight=torch.empty(*room),
            image=torch.zeros(*room, window.image_channels, *window.outer) if window.image_channels else None,
        )

    def draw(self, number: int, report: Report = silent) -> Tiles:
        """Read every case once and return tiles of it, in the room of the last sample; another number, other tiles."""
        self._tiles.empty()
        self.available = 0
        for index, case in enumerate(self._cases):
            rng = np.random.default_rng([self._seed, number, zlib.crc32(case.id.encode())])
            self.available += cut(case, self._window, self._quota, rng, self._tiles.at(index))
            report(f"read {index + 1} of {len(self._cases)} cases")
        refuse_nothing(self.available, len(self._cases), len(self._cases), Failures(None))
        return self._tiles


def cut(case: Case, window: Window, quota: int, rng: np.random.Generator, room: Tiles) -> int:
    """Draw tiles of a case into a room, and return how many labelled voxels the case has."""
    labels = require_labels(case)
    check_planes(case.logits[None], "the calibrator")
    check_volume(labels.ndim, window.axes)
    space = labels.shape[-window.axes :]
    labels = labels.reshape(-1, *space)
    grid = _Grid(space, window.side, rng)
    counted = labels >= 0
    difficulty = hardness(case.logits.reshape(len(case.logits), -1).float()).reshape(labels.shape) * counted
    tiles, weight = _draw(grid.sums(counted), grid.sums(difficulty), quota, rng)
    room.weight[: len(tiles)] = weight.to(room.weight.dtype)
    sources = [(case.logits, room.logits)]
    if room.image is not None:
        sources.append((_image(case, window.image_channels), room.image))
    for values, target in sources:
        planes = with_margin(values.reshape(len(values), -1, *space), (window.margin,) * window.axes)
        for slot, tile in enumerate(tiles):
            plane, own, its = grid.place(tile, 2 * window.margin)
            target[slot][(slice(None), *own)] = planes[:, plane][(slice(None), *its)].to(target.dtype)
    for slot, tile in enumerate(tiles):
        plane, own, its = grid.place(tile, 0)
        room.labels[slot][own] = labels[plane][its].to(room.labels.dtype)
        room.inside[slot][own] = True
    return int(counted.sum())


def _draw(counted: Tensor, difficulty: Tensor, quota: int, rng: np.random.Generator) -> tuple[list[int], Tensor]:
    """Return the numbers of the tiles that are drawn, and for how many each stands."""
    usable = counted.nonzero().squeeze(1)
    if len(usable) <= quota:
        return usable.tolist(), torch.ones(len(usable))
    own = difficulty[usable].double()
    chosen, probability = draw_hard(own, quota, float(len(usable)), float(own.sum()), rng)
    return usable[chosen].tolist(), 1 / probability


class _Grid:
    """Tiles over planes of this space, with a random origin where a plane is larger than a tile."""

    def __init__(self, space: Sequence[int], side: int, rng: np.random.Generator) -> None:
        self._space, self._side = tuple(space), side
        self._origin = [int(rng.integers(side)) if size > side else 0 for size in space]
        self._counts = [-(-(size + origin) // side) for size, origin in zip(space, self._origin, strict=True)]

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of ``(planes, *space)`` over every tile, as a flat list."""
        widths: list[int] = []
        shape = [len(values)]
        for size, origin, count in zip(self._space, self._origin, self._counts, strict=True):
            widths = [origin, count * self._side - origin - size, *widths]
            shape += [count, self._side]
        tiled = nn.functional.pad(values.float(), widths).reshape(shape)
        return tiled.sum(dim=tuple(range(2, len(shape), 2))).flatten()

    def place(self, tile: int, widen: int) -> tuple[int, tuple[slice, ...], tuple[slice, ...]]:
        """Return the plane of a tile, where its part of the image lies in the tile, and where in the image.

        Both are longer by `widen`, for values that have their margin.
        """
        plane, rest = divmod(tile, math.prod(self._counts))
        position = (int(number) for number in np.unravel_index(rest, self._counts))
        own, its = [], []
        for number, origin, size in zip(position, self._origin, self._space, strict=True):
            start = number * self._side - origin
            low, high = max(start, 0), min(start + self._side, size) + widen
            own.append(slice(low - start, high - start))
            its.append(slice(low, high))
        return plane, tuple(own), tuple(its)


def _image(case: Case, channels: int) -> Tensor:
    if case.image is None or len(case.image) != channels:
        found = "no image" if case.image is None else f"an image of {len(case.image)} channels"
        raise CaseError(
            case.id,
            f"it has {found}, but the calibrator sees images of {channels}. Open the cases with images=, or leave "
            "image_channels out.",
        )
    return case.image
