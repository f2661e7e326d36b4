"""The objective of a convex calibrator on given voxels; and that of one temperature, to which all penalties lead.

The problem of temperature scaling has one variable, and its exact second derivative comes with every pass.
"""

from abc import abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from segcal.calibrators.convex import LARGEST, SMALLEST_SCALE, Strengths
from segcal.fitting.newton import BlockProblem, Curvature, Solution, minimise
from segcal.fitting.sample import Voxels
from segcal.fitting.voxels import VoxelSource
from segcal.kernels.affine_temperature import temperature_terms

# A first approach on few voxels need not be exact.
COARSE_TOL = 1e-4
# That of a temperature uses every 16th voxel, or fewer: it keeps them, also where the voxels are streamed.
COARSE_STRIDE = 16
COARSE_VOXELS = 1 << 18


class ConvexProblem(BlockProblem):
    """An objective with one block of variables per expert.

    Attributes:
        num_blocks: E.
        blocks: the experts that have voxels; the others keep their parameters.
        names: the name of each of the P variables.
        block_weights: ``(E,)`` share of the voxels that each expert has.
        anchor: ``(P,)``, where the penalty of a block is zero.
        large: whether the Hessian of a block does not fit; it is then a :class:`ProductProblem`.
    """

    num_blocks: int = 1
    blocks: list[int]
    names: list[str]
    block_weights: Tensor
    anchor: Tensor
    large = False

    @abstractmethod
    def coarse(self) -> "ConvexProblem | None":
        """Return the same objective on few voxels, for a first approach; None where few would mislead it."""

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths of the penalty, and the temperature that `nu` draws to; nothing without a penalty."""

    def penalty_product(self, change: Tensor) -> Tensor:
        """Return the product of the (constant) Hessian of one block's penalty with ``change`` ``(P,)``."""
        return torch.zeros_like(change)

    def penalty(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalty of one block at ``theta`` ``(P,)`` and its gradient."""
        change = theta - self.anchor
        push = self.penalty_product(change)
        return 0.5 * float(change @ push), push

    def penalties(self, theta: Tensor) -> Tensor:
        """Return each block's penalty ``(E,)``; zero for blocks without voxels."""
        penalties = torch.zeros(len(theta), dtype=torch.float64)
        for block in self.blocks:
            penalties[block] = self.penalty(theta[block])[0]
        return penalties


class TemperatureProblem(ConvexProblem):
    """Mean NLL as a function of the inverse temperature, on every `stride`-th voxel."""

    def __init__(self, source: VoxelSource, device: torch.device, stride: int = 1) -> None:
        self.blocks, self.names = [0], ["inverse_temperature"]
        self.block_weights = torch.ones(1, dtype=torch.float64)
        self.low = torch.tensor([SMALLEST_SCALE], dtype=torch.float64)
        self.high = torch.tensor([LARGEST], dtype=torch.float64)
        self.anchor = torch.zeros(1, dtype=torch.float64)
        self._source, self._device, self._stride = source, device, stride
        self._second = torch.zeros(1, 1, dtype=torch.float64)
        self._weight = source.total_weight
        self._kept: list[Voxels] | None = None

    def coarse(self) -> "TemperatureProblem":
        """Return the problem on every 16th voxel (fewer of very many), if enough of them remain."""
        return TemperatureProblem(self._source, self._device, coarse_stride(self._source.used))

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return the mean NLL and its derivative; remember the second."""
        sums = torch.zeros(3, dtype=torch.float64)
        for voxels in self._batches():
            terms = temperature_terms(voxels.logits, voxels.labels, voxels.weight, float(theta[0, 0]))
            sums += torch.tensor(terms, dtype=torch.float64)
        sums /= self._weight
        self._second = sums[2].reshape(1, 1)
        return sums[:1].clone(), sums[1].reshape(1, 1)

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the second derivative at the last point that was evaluated."""
        return Curvature(self._second.clone())

    def refine(self, block: int) -> bool:
        """It is exact already."""
        return False

    def _batches(self) -> Iterable[Voxels]:
        if self._kept is not None:
            return self._kept
        batches = (
            Voxels(*(x[..., :: self._stride].contiguous().to(self._device) for x in voxels)) for voxels in self._source
        )
        if self._source.streamed and self._stride == 1:
            return batches
        self._kept = list(batches)
        if self._stride > 1:
            self._weight = sum(float(voxels.weight.sum(dtype=torch.float64)) for voxels in self._kept)
        return self._kept


def coarse_stride(voxels: int) -> int:
    """Return the step between voxels of a first approach: 1 for few voxels, at least 16 for many."""
    if voxels < 1000 * COARSE_STRIDE:
        return 1
    return max(COARSE_STRIDE, -(-voxels // COARSE_VOXELS))


def solve_temperature(source: VoxelSource, device: torch.device, tol: float, approach: bool = True) -> Solution:
    """Return the best inverse temperature of these voxels, from 1, with a first approach on few of them or without."""
    problem, start = TemperatureProblem(source, device), torch.ones(1, 1, dtype=torch.float64)
    if approach:
        start = minimise(problem.coarse(), start, [0], COARSE_TOL).theta
    return minimise(problem, start, [0], tol)
