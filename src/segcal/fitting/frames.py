"""The voxels of a fit in the coordinates of a convex calibrator, divided among its experts.

Frames are computed once and kept while they fit into the memory that is allowed; otherwise every pass computes them
again from the stream, case by case, and sends back sums: wherever that is done (:meth:`VoxelSource.each_case`), they
are added in the order of the cases, so that the fit is the same to the last bit.
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
from segcal.fitting.voxels import Voxels, VoxelSource, hardness, inclusion, systematic

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
        totals = torch.zeros(3, self.num_experts, dtype=torch.float64)
        moments, dtype = torch.zeros(2, 1, dtype=torch.float64), torch.float32
        for found in source.each_case(partial(_survey, calibrator, device, self.kept)):
            totals += found.totals
            moments, dtype = moments + found.moments, found.dtype or dtype
            for expert, block in found.blocks:
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
        streamed = _frames_of(self._calibrator, self._device, experts, self._source)
        return ((expert, self._moved(block)) for expert, block in streamed)

    def likelihood(self, theta: Tensor, experts: list[int]) -> Iterator[tuple[int, float, Tensor]]:
        """Yield the summed NLL of an expert, and its gradient: of all its voxels, or of those of one case at a time."""
        if self.kept:
            for expert, block in self.blocks(experts):
                yield expert, *self._calibrator.likelihood(block, theta[expert])
            return
        work = partial(_case_likelihood, self._calibrator, self._device, self.centre, theta, experts)
        for sums in self._source.each_case(work):
            for expert, (value, gradient) in sums.items():
                yield expert, value, gradient

    def draw(self, quotas: dict[int, int], seed: int) -> dict[int, Block]:
        """Draw about as many voxels of each expert as `quotas` says, hard ones more often, in one pass."""
        rule = _Draw(self._totals, quotas, seed, self._device)
        drawn: dict[int, list[Block]] = {}
        if self.kept:
            for expert, block in rule.of("", self.blocks(sorted(quotas))):
                drawn.setdefault(expert, []).append(block)
        else:
            work = partial(_case_draw, self._calibrator, self._device, self.centre, rule)
            for found in self._source.each_case(work):
                for expert, block in found:
                    drawn.setdefault(expert, []).append(block)
        return {expert: _join(blocks) for expert, blocks in drawn.items()}

    def restricted_to(self, blocks: dict[int, Block]) -> "Frames":
        """Return frames that offer these blocks only, as if they were all there is."""
        small = copy.copy(self)
        small.kept, small._blocks = True, blocks
        small.counts = [len(blocks[e].target) if e in blocks else 0 for e in range(self.num_experts)]
        return small

    def _moved(self, block: Block) -> Block:
        return _about(self.centre, block)


class _Found(NamedTuple):
    """Sums over voxels: ``(3, E)`` of count, weight and weighted hardness, and moments of features; and the voxels."""

    totals: Tensor
    moments: Tensor
    dtype: torch.dtype | None
    blocks: list[tuple[int, Block]]


def _survey(
    calibrator: ConvexCalibrator, device: torch.device, keep: bool, case_id: str, batches: Iterable[Voxels]
) -> _Found:
    totals = torch.zeros(3, calibrator.num_experts, dtype=torch.float64)
    moments, dtype, blocks = torch.zeros(2, 1, dtype=torch.float64), None, []
    for expert, block in _frames_of(calibrator, device, range(calibrator.num_experts), batches):
        weight, hard = (float(x.sum(dtype=torch.float64)) for x in (block.weight, block.weight * block.hard))
        totals[:, expert] += torch.tensor([len(block.weight), weight, hard], dtype=torch.float64)
        if calibrator.centred:
            dtype, x = block.features.dtype, block.features.double()
            moments = moments + torch.stack([x @ block.weight.double(), x.square() @ block.weight.double()]).cpu()
        blocks += [(expert, block)] if keep else []
    return _Found(totals, moments, dtype, blocks)


def _case_likelihood(
    calibrator: ConvexCalibrator,
    device: torch.device,
    centre: Tensor | None,
    theta: Tensor,
    experts: list[int],
    case_id: str,
    batches: Iterable[Voxels],
) -> dict[int, tuple[float, Tensor]]:
    sums: dict[int, tuple[float, Tensor]] = {}
    for expert, block in _frames_of(calibrator, device, experts, batches):
        value, gradient = calibrator.likelihood(_about(centre, block), theta[expert])
        before = sums.get(expert, (0.0, torch.zeros_like(gradient)))
        sums[expert] = before[0] + value, before[1] + gradient
    return sums


class _Draw(NamedTuple):
    """How many voxels of each expert are drawn, and the sums of :class:`_Found` that their chances depend on."""

    totals: Tensor
    quotas: dict[int, int]
    seed: int
    device: torch.device

    def of(self, case_id: str, blocks: Iterable[tuple[int, Block]]) -> Iterator[tuple[int, Block]]:
        """Draw from voxels; the chance of each is the same wherever that is done."""
        name = [zlib.crc32(case_id.encode("utf-8", "surrogatepass"))] if case_id else []
        rngs = {expert: np.random.default_rng([self.seed, expert, q, *name]) for expert, q in self.quotas.items()}
        for expert, block in blocks:
            count, weight, hard = (float(total) for total in self.totals[:, expert])
            if count <= self.quotas[expert]:
                yield expert, block
                continue
            probability = inclusion((block.weight * block.hard).cpu(), self.quotas[expert], weight, hard)
            index = systematic(probability, rngs[expert])
            part = block.take(index.to(self.device))
            yield expert, part._replace(weight=part.weight / probability[index].to(self.device))


def _case_draw(
    calibrator: ConvexCalibrator,
    device: torch.device,
    centre: Tensor | None,
    rule: _Draw,
    case_id: str,
    batches: Iterable[Voxels],
) -> list[tuple[int, Block]]:
    blocks = _frames_of(calibrator, device, sorted(rule.quotas), batches)
    return list(rule.of(case_id, ((expert, _about(centre, block)) for expert, block in blocks)))


def _about(centre: Tensor | None, block: Block) -> Block:
    return block._replace(features=take_out(block.features, centre), centre=centre)


def _frames_of(
    calibrator: ConvexCalibrator, device: torch.device, experts: Iterable[int], batches: Iterable[Voxels]
) -> Iterator[tuple[int, Block]]:
    chosen = list(experts)
    for voxels in batches:
        for part in voxels.steps(STEP_VALUES, device):
            yield from _split(calibrator, part, chosen)


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


def _join(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    features, target, weight, hard = (torch.cat(parts, -1) for parts in list(zip(*blocks, strict=True))[:4])
    return Block(features, target, weight, hard, blocks[0].centre)
