"""Voxels in memory for methods that sort them or visit them in random order, and voxels left out by a rule."""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import torch
from torch import Tensor

from segcal.fitting.sample import Voxels, draw, systematic
from segcal.fitting.voxels import VoxelSource


def gather(source: VoxelSource, most: int, seed: int) -> Voxels:
    """Return about `most` voxels of a source, or all of them if it holds no more.

    Of a sample, each is taken with the same probability; of a stream, hard ones more often. Weights undo either.
    """
    rng = np.random.default_rng([seed, most])
    parts = []
    for voxels in source:
        count = voxels.labels.numel()
        quota = max(1, round(most * count / source.used))
        if source.used > most and source.streamed:
            voxels = draw(voxels, quota, rng)
        elif source.used > most:
            voxels = _thinned(voxels, quota / count, rng)
        parts.append(voxels)
    return Voxels(*(torch.cat(values, dim=-1) for values in zip(*parts, strict=True)))


def _thinned(voxels: Voxels, probability: float, rng: np.random.Generator) -> Voxels:
    index = systematic(torch.full(voxels.labels.shape, probability), rng)
    return Voxels(voxels.logits[:, index], voxels.labels[index], voxels.weight[index] / probability)


class KeptVoxels(VoxelSource):
    """The voxels of a source that a rule keeps.

    Args:
        source: the voxels.
        keep: returns, for logits ``(C, n)``, a mask ``(n,)`` of those that stay.
    """

    def __init__(self, source: VoxelSource, keep: Callable[[Tensor], Tensor]) -> None:
        self._source, self._keep = source, keep
        self.num_classes, self.ids, self.streamed = source.num_classes, source.ids, source.streamed
        self._kept = None if source.streamed else [self._filter(voxels) for voxels in source]
        counts = [(voxels.labels.numel(), float(voxels.weight.sum(dtype=torch.float64))) for voxels in self]
        self.used, self._weight = sum(count for count, _ in counts), sum(weight for _, weight in counts)
        self.available = round(self._weight)

    def __iter__(self) -> Iterator[Voxels]:
        if self._kept is not None:
            yield from self._kept
            return
        for voxels in self._source:
            yield self._filter(voxels)

    def subset(self, ids: Collection[str]) -> "KeptVoxels":
        """Return what the rule keeps of these cases."""
        return KeptVoxels(self._source.subset(ids), self._keep)

    @property
    def total_weight(self) -> float:
        """Return the sum of the weights."""
        return self._weight

    def _filter(self, voxels: Voxels) -> Voxels:
        stays = self._keep(voxels.logits)
        return Voxels(*(values[..., stays].contiguous() for values in voxels))
