"""The convex problem of temperature scaling: one variable, with its exact second derivative in every pass."""

from collections.abc import Iterable

import torch
from torch import Tensor

from segcal.calibrators.affine import LARGEST, SMALLEST_SCALE
from segcal.calibrators.temperature import TemperatureScaling
from segcal.fitting.convex_problem import ConvexProblem, Strengths
from segcal.fitting.curvature import DenseCurvature
from segcal.fitting.newton import Curvature
from segcal.fitting.sample import Voxels
from segcal.fitting.voxels import VoxelSource
from segcal.kernels.affine_temperature import temperature_terms

# The first approach uses every 16th voxel, or fewer: it keeps them, also where the voxels are streamed.
COARSE_STRIDE = 16
COARSE_VOXELS = 1 << 18


class TemperatureProblem(ConvexProblem):
    """Mean NLL as a function of the inverse temperature.

    Args:
        calibrator: where the result goes.
        source: the voxels.
        device: where to compute.
        stride: use every n-th voxel only.
    """

    num_blocks = 1

    def __init__(
        self, calibrator: TemperatureScaling, source: VoxelSource, device: torch.device, stride: int = 1
    ) -> None:
        self.blocks, self.names = [0], ["inverse_temperature"]
        self.block_weights = torch.ones(1, dtype=torch.float64)
        self.low = torch.tensor([SMALLEST_SCALE], dtype=torch.float64)
        self.high = torch.tensor([LARGEST], dtype=torch.float64)
        self.anchor = torch.zeros(1, dtype=torch.float64)
        self._calibrator, self._source, self._device, self._stride = calibrator, source, device, stride
        self._second = torch.zeros(1, 1, dtype=torch.float64)
        self._weight = source.total_weight
        self._kept: list[Voxels] | None = None

    def start(self) -> Tensor:
        """Return the calibrator's inverse temperature."""
        return self._calibrator.inverse_temperature.detach().double().cpu().reshape(1, 1)

    def coarse(self) -> "TemperatureProblem":
        """Return the problem on every 16th voxel (fewer of very many), if enough of them remain."""
        return TemperatureProblem(self._calibrator, self._source, self._device, coarse_stride(self._source.used))

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Set the calibrator's inverse temperature."""
        self._calibrator.inverse_temperature.copy_(theta[0, 0])

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """There is no penalty."""

    def penalty_product(self, change: Tensor) -> Tensor:
        """There is no penalty."""
        return torch.zeros_like(change)

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
        return DenseCurvature(self._second.clone())

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
