"""The mean NLL of a calibrator in batches, for training by gradient: of voxels, or of tiles.

A round visits every voxel or tile once, in an order that its number and the seed decide; so a training can be taken up
at any round. Sums are taken in float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.look_around import LookAround
from segcal.fitting.crops import Tiles
from segcal.fitting.sample import Voxels
from segcal.types import Context

# Voxels of one step on voxels; tiles of one step on tiles, and cases where the tiles of a case stand together.
BATCH_VOXELS = 1 << 15
BATCH_TILES = 80
BATCH_CASES = 8


class Batches(ABC):
    """Mean NLL as a function of a calibrator, as a whole and batch by batch.

    Attributes:
        count: batches of a round.
        used: labelled voxels of a round.
    """

    count: int
    used: int

    @abstractmethod
    def _parts(self, number: int | None) -> Iterable[Voxels | Tiles]:
        """Return the batches of a round; in the order of the cases, without a number."""

    @abstractmethod
    def _sums(self, model: Calibrator, part: Voxels | Tiles) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the NLL of a batch, and of its weights."""

    def losses(self, model: Calibrator, number: int) -> Iterator[Tensor]:
        """Yield the mean NLL of each batch of a round, differentiable in the parameters."""
        for part in self._parts(number):
            total, weight = self._sums(model, part)
            if float(weight) > 0:  # a batch may have no labelled voxel
                yield total / weight

    @torch.no_grad()
    def mean(self, model: Calibrator) -> float:
        """Return the mean NLL of all batches."""
        total = weight = 0.0
        for part in self._parts(None):
            found = self._sums(model, part)
            total, weight = total + float(found[0]), weight + float(found[1])
        return total / weight


class VoxelBatches(Batches):
    """Batches of voxels, for calibrators that work voxel by voxel.

    Args:
        source: the voxels; read again in every round.
        used: how many there are.
        device: where to compute.
        seed: of the order.
    """

    def __init__(self, source: Iterable[Voxels], used: int, device: torch.device, seed: int) -> None:
        self._source, self._device, self._seed = source, device, seed
        self.used = used
        self.count = max(1, -(-used // BATCH_VOXELS))

    def _parts(self, number: int | None) -> Iterator[Voxels]:
        rng = np.random.default_rng([self._seed, number or 0])
        for voxels in self._source:
            count = voxels.labels.numel()
            order = torch.from_numpy(np.arange(count) if number is None else rng.permutation(count))
            for index in order.split(BATCH_VOXELS):
                yield voxels.take(index)

    def _sums(self, model: Calibrator, part: Voxels | Tiles) -> tuple[Tensor, Tensor]:
        assert isinstance(part, Voxels)
        logits, labels, weight = (values.to(self._device) for values in part)
        return _weighted(model.scores(logits.T.contiguous()), labels, weight)


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

    def _parts(self, number: int | None) -> Iterator[Tiles]:
        tiles = self._tiles_of(number or 0)
        rng = np.random.default_rng([self._seed, number or 0])
        if not self._whole:
            tiles = Tiles(*(None if x is None else x.flatten(0, 1) for x in tiles))  # type: ignore[arg-type]
        used = torch.arange(len(tiles.weight)) if self._whole else tiles.weight.nonzero().squeeze(1)
        order = used if number is None else used[torch.from_numpy(rng.permutation(len(used)))]
        for index in order.split(BATCH_CASES if self._whole else BATCH_TILES):
            yield tiles.at(index)

    def _sums(self, model: Calibrator, part: Voxels | Tiles) -> tuple[Tensor, Tensor]:
        assert isinstance(part, Tiles)
        assert isinstance(model, LookAround)
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
