"""The data of a fit by gradient: batches of voxels or of tiles, to learn from and to stop on.

A round visits every voxel or tile once, in an order that its number and the seed decide. So a training can be taken up
at any round. Sums are taken in float64.

Without validation cases a fifth of the calibration cases is held back, whole groups of them. Of a single case or group,
a fifth of its tiles or voxels is held back. Either is written to the certificate. With ``voxels="all"`` tiles are drawn
anew for every round, so that in the course of time all voxels are seen; else they are drawn once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.local_temperature import SeesNeighbours
from segcal.cases.base import Split
from segcal.fitting.crops import Tiles, TileSource, Window
from segcal.fitting.division import divide, groups_of
from segcal.fitting.request import FitData, Request, read_data
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.types import Context

# Voxels of one step on voxels; tiles of one step on tiles, and cases where the tiles of a case stand together.
BATCH_VOXELS = 1 << 15
BATCH_TILES = 80
BATCH_CASES = 8
# Share of the calibration cases that is held back where there are no validation cases.
HELD_BACK = 0.2


class Batches(ABC):
    """Mean NLL as a function of a calibrator, as a whole and batch by batch.

    Attributes:
        count: batches of a round.
        used: labelled voxels of a round.
    """

    count: int
    used: int

    @abstractmethod
    def _sums_of(self, model: Calibrator, number: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each batch of a round, the weighted sum of the NLL and of the weights.

        Without a number the batches come in the order of the cases.
        """

    def losses(self, model: Calibrator, number: int) -> Iterator[Tensor]:
        """Yield the mean NLL of each batch of a round, differentiable in the parameters."""
        for total, weight in self._sums_of(model, number):
            if float(weight) > 0:  # a batch may have no labelled voxel
                yield total / weight

    @torch.no_grad()
    def mean(self, model: Calibrator) -> float:
        """Return the mean NLL of all batches."""
        total = weight = 0.0
        for found in self._sums_of(model, None):
            total, weight = total + float(found[0]), weight + float(found[1])
        return total / weight


class VoxelBatches(Batches):
    """Batches of voxels, for calibrators that work voxel by voxel; the source is read again in every round."""

    def __init__(self, source: Iterable[Voxels], used: int, device: torch.device, seed: int) -> None:
        self._source, self._device, self._seed = source, device, seed
        self.used = used
        self.count = max(1, -(-used // BATCH_VOXELS))

    def _sums_of(self, model: Calibrator, number: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        rng = np.random.default_rng([self._seed, number or 0])
        for voxels in self._source:
            own = voxels._replace(context=None, distance=None)  # of no use to those that work voxel by voxel
            count = own.labels.numel()
            order = None if number is None else torch.from_numpy(rng.permutation(count))
            for start in range(0, count, BATCH_VOXELS):
                part = slice(start, start + BATCH_VOXELS)
                batch = own.take(part if order is None else order[part])
                logits, labels, weight, *_ = batch.each(lambda values: values.to(self._device))
                yield _weighted(model.scores(logits.T.contiguous()), labels, weight)


class TileBatches(Batches):
    """Batches of tiles, for calibrators that see neighbours.

    Tiles of all cases are mixed: cases differ in the temperature they need, and a step on few of them follows these.

    Args:
        tiles_of: returns the tiles of a round, by its number.
        device: where to compute; on CUDA, convolutions of training are done in bfloat16.
        seed: of the order.
        whole: the calibrator sees whole images, for which the tiles of a case stand together.
    """

    def __init__(self, tiles_of: Callable[[int], Tiles], device: torch.device, seed: int, whole: bool) -> None:
        self._tiles_of, self._device, self._seed, self._whole = tiles_of, device, seed, whole
        tiles = tiles_of(0)
        self.used = int((tiles.labels >= 0).sum())
        count, size = (len(tiles.weight), BATCH_CASES) if whole else (int((tiles.weight > 0).sum()), BATCH_TILES)
        self.count = max(1, -(-count // size))

    def _sums_of(self, model: Calibrator, number: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        tiles = self._tiles_of(number or 0)
        rng = np.random.default_rng([self._seed, number or 0])
        if not self._whole:
            tiles = Tiles(*(None if x is None else x.flatten(0, 1) for x in tiles))  # type: ignore[arg-type]
        used = torch.arange(len(tiles.weight)) if self._whole else tiles.weight.nonzero().squeeze(1)
        order = used if number is None else used[torch.from_numpy(rng.permutation(len(used)))]
        for index in order.split(BATCH_CASES if self._whole else BATCH_TILES):
            yield self._sums(model, tiles.at(index))

    def _sums(self, model: Calibrator, part: Tiles) -> tuple[Tensor, Tensor]:
        assert isinstance(model, SeesNeighbours)
        part = _as_slices(part) if self._whole else part
        logits, labels, inside, weight = (values.to(self._device) for values in part[:4])
        weight = weight.reshape(*weight.shape, *(1,) * (labels.ndim - weight.ndim)) * inside
        context = None if part.image is None else Context(image=part.image.to(self._device))
        mixed = self._device.type == "cuda" and torch.is_grad_enabled()
        with torch.autocast("cuda", torch.bfloat16) if mixed else nullcontext():
            scores = model.inner_scores(logits, context, weight[:, None])
        return _weighted(scores, labels, weight)


def _as_slices(tiles: Tiles) -> Tiles:
    """Return the tiles of each case as the slices of one volume."""
    image = None if tiles.image is None else tiles.image.movedim(2, 1)
    return tiles._replace(logits=tiles.logits.movedim(2, 1), image=image)


def _weighted(scores: Tensor, labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    counted = labels >= 0
    own = scores.gather(1, labels.clamp(min=0).long().unsqueeze(1)).squeeze(1)
    nll = torch.logsumexp(scores, dim=1) - own
    weight = weight * counted
    return (nll * weight).sum(dtype=torch.float64), weight.sum(dtype=torch.float64)


@dataclass(frozen=True)
class LearningData:
    """Batches to learn from and to stop on, the labelled voxels available, and what the certificate says of them."""

    train: Batches
    validation: Batches
    available: int
    details: dict[str, object]


def _held_back(request: Request, validation: object, parts: str) -> tuple[Split | None, dict[str, object]]:
    """Return the cases divided, if there is no validation and more than one group; and what the certificate says."""
    cases = request.cases
    if validation is not None:
        return None, {}
    if len(set(groups_of(cases).values())) < 2:
        return None, {"held_back": f"a fifth of the {parts} of the only case or group"}
    split = divide(cases, HELD_BACK, seed=request.config.seed)
    return split, {"held_back": list(split.val.ids)}


def read_tiles(request: Request) -> LearningData:
    """Draw tiles of the cases, for a calibrator that sees neighbours, and tell it where the values of images lie."""
    calibrator = request.calibrator
    assert isinstance(calibrator, SeesNeighbours)
    config, window = request.config, Window.of(calibrator)
    split, details = _held_back(request, request.validation_cases, "tiles")
    cases, held = (request.cases, request.validation_cases) if split is None else split[:2]
    source = TileSource(cases, window, config)
    tiles = source.draw(0, request.report)
    whole = calibrator.reach(2) is None

    def batches(tiles_of: Callable[[int], Tiles]) -> Batches:
        return TileBatches(tiles_of, request.device, config.seed, whole)

    if held is not None:
        chosen = TileSource(held, window, config).draw(0, request.report)
        train = batches(source.draw if config.voxels == "all" else lambda number: tiles)
    else:
        kept, chosen = _fifth_of_tiles(tiles)
        train = batches(lambda number: kept)
    if tiles.image is not None:
        _centre_images(calibrator, tiles.image[tiles.weight > 0])
    return LearningData(train, batches(lambda number: chosen), source.available, details)


def _fifth_of_tiles(tiles: Tiles) -> tuple[Tiles, Tiles]:
    """Return four fifths of the tiles and the rest; all of them twice if there are too few."""
    last = torch.arange(tiles.weight.shape[1]) % 5 == 4
    kept, chosen = (tiles.at(slice(None), index) for index in (~last, last))
    if bool((kept.labels >= 0).any()) and bool((chosen.labels >= 0).any()):
        return kept, chosen
    return tiles, tiles


@torch.no_grad()
def _centre_images(calibrator: SeesNeighbours, images: Tensor) -> None:
    values = images.movedim(1, 0).flatten(1).double()
    tree = calibrator.get_submodule("tree")
    tree.get_buffer("image_centre").copy_(values.mean(1))
    tree.get_buffer("image_scale").copy_(values.std(1).clamp(min=1e-6))


def read_voxels(request: Request) -> LearningData:
    """Take the voxels of the fit, for a calibrator that works voxel by voxel."""
    config = request.config
    data: FitData = request
    split, details = _held_back(request, request.validation, "voxels")
    if split is not None:
        data = read_data(split.cal, split.val, config, request.report)
    source, validation = data.source, data.validation
    shares: list[Iterable[Voxels]] = [source, source]
    counts = [source.used, source.used]
    if validation is not None:
        shares[1], counts[1] = validation, validation.used
    elif source.used >= 5:
        shares = [_Share(source, held) for held in (False, True)]
    pairs = zip(shares, counts, strict=True)
    train, chosen = (VoxelBatches(share, count, request.device, config.seed) for share, count in pairs)
    return LearningData(train, chosen, source.available, details)


class _Share:
    """Four fifths of the voxels of a source, or the fifth that is held back."""

    def __init__(self, source: VoxelSource, held: bool) -> None:
        self._source, self._held = source, held

    def __iter__(self) -> Iterator[Voxels]:
        for voxels in self._source:
            yield voxels.take((torch.arange(voxels.labels.numel()) % 5 == 4) == self._held)
