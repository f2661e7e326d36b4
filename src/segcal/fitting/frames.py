"""The voxels of a fit in the coordinates of a convex calibrator, divided among its experts.

Frames are computed once and kept while they fit into the memory that is allowed; otherwise every pass computes them
again from the stream. Either way a pass visits the same blocks with the same numbers.
"""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.centre import find_centre, take_out
from segcal.calibrators.convex import Block, ConvexCalibrator
from segcal.fitting.sample import Voxels, hardness, inclusion, systematic
from segcal.fitting.voxels import VoxelSource

# Values in one step of making frames, which is done in float64.
STEP_VALUES = 1 << 20


class Frames:
    """Blocks of voxels per expert, kept or computed on every pass.

    Attributes:
        num_experts: E.
        counts: ``(E,)`` number of voxels of each expert.
        total_weight: what a mean over all voxels divides by.
        shares: ``(E,)`` share of the total weight that each expert has.
        kept: whether the blocks stay in memory.
        centre: what was taken out of the features, of a calibrator that is `centred`; None for nothing.
        largest_sample: how many voxels of each expert may be kept beside a stream.
    """

    def __init__(
        self, source: VoxelSource, calibrator: ConvexCalibrator, cache_bytes: int, device: torch.device
    ) -> None:
        self._source, self._calibrator, self._device = source, calibrator, device
        self.num_experts = calibrator.num_experts
        self.centre: Tensor | None = None
        self.total_weight = source.total_weight
        bytes_each = 4 * (calibrator.num_features + 3)
        self.kept = not source.streamed or source.used * bytes_each <= cache_bytes
        # A fourth of what is allowed: joining the pieces of a sample takes as much again, and so does working on it.
        self.largest_sample = source.used if self.kept else max(1, cache_bytes // (4 * bytes_each * self.num_experts))
        pieces: dict[int, list[Block]] = {}
        totals = torch.zeros(3, self.num_experts, dtype=torch.float64)  # count, weight, weighted hardness
        moments, dtype = torch.zeros(2, 1, dtype=torch.float64), torch.float32
        for expert, block in self._make(range(self.num_experts)):
            weight, hard = (float(x.sum(dtype=torch.float64)) for x in (block.weight, block.weight * block.hard))
            totals[:, expert] += torch.tensor([len(block.weight), weight, hard], dtype=torch.float64)
            if calibrator.centred:
                dtype, x = block.features.dtype, block.features.double()
                moments = moments + torch.stack([x @ block.weight.double(), x.square() @ block.weight.double()]).cpu()
            if self.kept:
                pieces.setdefault(expert, []).append(block)
        self._totals, self.shares = totals, totals[1] / self.total_weight
        if calibrator.centred:
            self.centre = find_centre(self.total_weight, moments[0], moments[1], dtype)
        self.counts = totals[0].long().tolist()
        self._blocks = {expert: self._moved(_join(blocks)) for expert, blocks in pieces.items()}

    def blocks(self, experts: list[int]) -> Iterator[tuple[int, Block]]:
        """Visit the voxels of these experts."""
        if self.kept:
            return iter((expert, self._blocks[expert]) for expert in experts if expert in self._blocks)
        return ((expert, self._moved(block)) for expert, block in self._make(experts))

    def draw(self, quotas: dict[int, int], seed: int) -> dict[int, Block]:
        """Draw about as many voxels of each expert as `quotas` says, hard ones more often, in one pass."""
        rngs = {expert: np.random.default_rng([seed, expert, quota]) for expert, quota in quotas.items()}
        drawn: dict[int, list[Block]] = {}
        for expert, block in self.blocks(sorted(quotas)):
            _, weight, hard = (float(total) for total in self._totals[:, expert])
            if self.counts[expert] <= quotas[expert]:
                drawn.setdefault(expert, []).append(block)
                continue
            probability = inclusion((block.weight * block.hard).cpu(), quotas[expert], weight, hard)
            index = systematic(probability, rngs[expert])
            part = block.take(index.to(self._device))
            new_weight = part.weight / probability[index].to(self._device)
            drawn.setdefault(expert, []).append(part._replace(weight=new_weight))
        return {expert: _join(blocks) for expert, blocks in drawn.items()}

    def restricted_to(self, blocks: dict[int, Block]) -> "Frames":
        """Return frames that offer these blocks only, as if they were all there is."""
        small = copy.copy(self)
        small.kept, small._blocks = True, blocks
        small.counts = [len(blocks[e].target) if e in blocks else 0 for e in range(self.num_experts)]
        return small

    def _moved(self, block: Block) -> Block:
        return block._replace(features=take_out(block.features, self.centre), centre=self.centre)

    def _make(self, experts: list[int] | range) -> Iterator[tuple[int, Block]]:
        for voxels in self._source:
            for part in voxels.steps(STEP_VALUES, self._device):
                yield from self._split(part, experts)

    @torch.no_grad()
    def _split(self, voxels: Voxels, experts: list[int] | range) -> Iterator[tuple[int, Block]]:
        frame = self._calibrator.frame(voxels.logits.T.double(), voxels.context)
        target = voxels.labels
        if frame.order is not None:
            positions = torch.arange(frame.order.shape[1], dtype=torch.int32, device=frame.order.device)
            found = (frame.order == voxels.labels[:, None]).to(torch.int32)
            target = (found * positions).sum(1, dtype=torch.int32)
        features = frame.features.T.to(voxels.logits.dtype)
        whole = Block(features, target, voxels.weight, hardness(voxels.logits))
        if frame.expert is None:
            yield 0, whole._replace(features=features.contiguous())
            return
        for expert in experts:
            index = (frame.expert == expert).nonzero().squeeze(1)
            if len(index):
                yield expert, whole.take(index)


def _join(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    features, target, weight, hard = (torch.cat(parts, -1) for parts in list(zip(*blocks, strict=True))[:4])
    return Block(features, target, weight, hard, blocks[0].centre)
