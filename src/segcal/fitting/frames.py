"""The voxels of a fit in the coordinates of a convex calibrator, divided among its experts.

Frames are computed once and kept while they fit into the memory that is allowed. Otherwise every pass computes them
again from the stream, case by case, and sends back sums (:meth:`VoxelSource.each_case`). These are added in the order
of the cases, so the fit is the same to the last bit.
"""

import copy
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.convex import Block, ConvexCalibrator, find_centre, take_out
from segcal.fitting.voxels import Voxels, VoxelSource, draw_hard, hardness

# Values in one step of making frames, which is done in float64.
STEP_VALUES = 1 << 20


class _Found(NamedTuple):
    """Sums over voxels: ``(3, E)`` of count, weight and weighted hardness, and moments of features; and the voxels."""

    totals: Tensor
    moments: Tensor
    dtype: torch.dtype | None
    blocks: list[tuple[int, Block]]


class _Draw(NamedTuple):
    """The number of voxels of each expert to draw, and the sums of :class:`_Found` that their chances depend on."""

    totals: Tensor
    quotas: dict[int, int]
    seed: int

    def of(self, case_id: str, blocks: Iterable[tuple[int, Block]]) -> list[tuple[int, Block]]:
        """Draw from voxels; the chance of each is the same wherever that is done."""
        name = [zlib.crc32(case_id.encode("utf-8", "surrogatepass"))] if case_id else []
        rngs = {expert: np.random.default_rng([self.seed, expert, q, *name]) for expert, q in self.quotas.items()}
        drawn = []
        for expert, block in blocks:
            count, weight, hard = (float(total) for total in self.totals[:, expert])
            if count > self.quotas[expert]:
                own, there = (block.weight * block.hard).cpu(), block.weight.device
                index, probability = draw_hard(own, self.quotas[expert], weight, hard, rngs[expert])
                block = block.take(index.to(there))
                block = block._replace(weight=block.weight / probability.to(there))
            drawn.append((expert, block))
        return drawn


class _CaseWork(NamedTuple):
    """The work on the voxels of one case, wherever that is done: the last arguments are those of a case's function."""

    calibrator: ConvexCalibrator
    device: torch.device
    centre: Tensor | None = None

    def survey(self, keep: bool, case_id: str, batches: Iterable[Voxels]) -> _Found:
        """Return the sums over a case, and its voxels, if they are kept."""
        calibrator = self.calibrator
        totals = torch.zeros(3, calibrator.num_experts, dtype=torch.float64)
        moments, dtype, blocks = torch.zeros(2, 1, dtype=torch.float64), None, []
        for expert, block in self.blocks(range(calibrator.num_experts), batches):
            weight, hard = (float(x.sum(dtype=torch.float64)) for x in (block.weight, block.weight * block.hard))
            totals[:, expert] += torch.tensor([len(block.weight), weight, hard], dtype=torch.float64)
            if calibrator.centred:
                dtype, x = block.features.dtype, block.features.double()
                moments = moments + torch.stack([x @ block.weight.double(), x.square() @ block.weight.double()]).cpu()
            blocks += [(expert, block)] if keep else []
        return _Found(totals, moments, dtype, blocks)

    def likelihood(
        self, theta: Tensor, experts: list[int], case_id: str, batches: Iterable[Voxels]
    ) -> dict[int, tuple[float, Tensor]]:
        """Return the summed NLL of each expert, and its gradient."""
        sums: dict[int, tuple[float, Tensor]] = {}
        for expert, block in self.blocks(experts, batches):
            value, gradient = self.calibrator.likelihood(block, theta[expert])
            before = sums.get(expert, (0.0, torch.zeros_like(gradient)))
            sums[expert] = before[0] + value, before[1] + gradient
        return sums

    def draw(self, rule: _Draw, case_id: str, batches: Iterable[Voxels]) -> list[tuple[int, Block]]:
        """Return the voxels that are drawn."""
        return rule.of(case_id, self.blocks(sorted(rule.quotas), batches))

    def blocks(self, experts: Iterable[int], batches: Iterable[Voxels]) -> Iterator[tuple[int, Block]]:
        """Yield the voxels in the coordinates of the calibrator, about the centre, by expert."""
        chosen = list(experts)
        for voxels in batches:
            for part in voxels.steps(STEP_VALUES, self.device):
                for expert, block in _split(self.calibrator, part, chosen):
                    yield expert, self.about(block)

    def about(self, block: Block) -> Block:
        """Return the voxels with their features about the centre."""
        return block._replace(features=take_out(block.features, self.centre), centre=self.centre)


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
        self._source, self._work = source, _CaseWork(calibrator, device)
        self.num_experts = calibrator.num_experts
        self.total_weight = source.total_weight
        bytes_each = 4 * (calibrator.num_features + 3)
        self.kept = not source.streamed or source.used * bytes_each <= cache_bytes
        # A fourth of what is allowed: joining the pieces of a sample takes as much again, and so does working on it.
        self.largest_sample = source.used if self.kept else max(1, cache_bytes // (4 * bytes_each * self.num_experts))
        pieces: list[tuple[int, Block]] = []
        totals = torch.zeros(3, self.num_experts, dtype=torch.float64)
        moments, dtype = torch.zeros(2, 1, dtype=torch.float64), torch.float32
        for found in source.each_case(partial(self._work.survey, self.kept)):
            totals += found.totals
            moments, dtype = moments + found.moments, found.dtype or dtype
            pieces += found.blocks
        self._totals, self.shares = totals, totals[1] / self.total_weight
        self.counts = totals[0].long().tolist()
        if calibrator.centred:
            self._work = self._work._replace(centre=find_centre(self.total_weight, moments[0], moments[1], dtype))
        self._blocks = {expert: self._work.about(block) for expert, block in _joined(pieces).items()}

    @property
    def centre(self) -> Tensor | None:
        """The offset taken out of the features."""
        return self._work.centre

    def blocks(self, experts: list[int]) -> Iterator[tuple[int, Block]]:
        """Visit the voxels of these experts."""
        if self.kept:
            return iter((expert, self._blocks[expert]) for expert in experts if expert in self._blocks)
        return self._work.blocks(experts, self._source)

    def likelihood(self, theta: Tensor, experts: list[int]) -> Iterator[tuple[int, float, Tensor]]:
        """Yield the summed NLL of an expert, and its gradient: of all its voxels, or of those of one case at a time."""
        if self.kept:
            for expert, block in self.blocks(experts):
                yield expert, *self._work.calibrator.likelihood(block, theta[expert])
            return
        for sums in self._source.each_case(partial(self._work.likelihood, theta, experts)):
            for expert, (value, gradient) in sums.items():
                yield expert, value, gradient

    def draw(self, quotas: dict[int, int], seed: int) -> dict[int, Block]:
        """Draw about as many voxels of each expert as `quotas` says, hard ones more often, in one pass."""
        rule = _Draw(self._totals, quotas, seed)
        if self.kept:
            return _joined(rule.of("", self.blocks(sorted(quotas))))
        found = self._source.each_case(partial(self._work.draw, rule))
        return _joined(piece for pieces in found for piece in pieces)

    def restricted_to(self, blocks: dict[int, Block]) -> "Frames":
        """Return frames that offer these blocks only, as if they were all there is."""
        small = copy.copy(self)
        small.kept, small._blocks = True, blocks
        small.counts = [len(blocks[e].target) if e in blocks else 0 for e in range(self.num_experts)]
        return small


@torch.no_grad()
def _split(calibrator: ConvexCalibrator, voxels: Voxels, experts: list[int]) -> Iterator[tuple[int, Block]]:
    frame = calibrator.frame(voxels.logits.T.double(), voxels.context)
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


def _joined(pieces: Iterable[tuple[int, Block]]) -> dict[int, Block]:
    """Return the voxels of each expert in one block; those of a single piece are not copied."""
    by_expert: dict[int, list[Block]] = {}
    for expert, block in pieces:
        by_expert.setdefault(expert, []).append(block)
    joined = {}
    for expert, blocks in by_expert.items():
        features, target, weight, hard = (
            parts[0] if len(parts) == 1 else torch.cat(parts, -1) for parts in list(zip(*blocks, strict=True))[:4]
        )
        joined[expert] = Block(features, target, weight, hard, blocks[0].centre)
    return joined
