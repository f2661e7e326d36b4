r"""The convex problem of vector scaling: scores :math:`a_c z_c + b_c`, with one a for all classes or one for each.

With :math:`p = S(s)` and per-class features :math:`(z_c, 1)`, gradient and Hessian in (a, b) are sums over classes of
:math:`(p - e_y)_c (z_c, 1)` and of :math:`p_c (\delta_{cd} - p_d)` times products of these features; a common a adds
up the rows and columns of its class.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from segcal.calibrators.affine import LARGEST, SMALLEST_SCALE, Frame
from segcal.calibrators.vector import VectorScaling
from segcal.fitting.convex_problem import ConvexProblem, Strengths
from segcal.fitting.curvature import DenseCurvature
from segcal.fitting.frames import Block, Frames
from segcal.fitting.newton import Curvature

SAMPLE = 1 << 16
STEP_VALUES = 1 << 19


class VectorProblem(ConvexProblem):
    """Mean NLL plus the penalty of vector scaling.

    Args:
        calibrator: where the result goes.
        frames: the voxels; their features are the logits (see :func:`vector_frame`).
        seed: of the sample behind the Hessian.
    """

    num_blocks = 1

    def __init__(self, calibrator: VectorScaling, frames: Frames, seed: int) -> None:
        scales, classes = calibrator.scale.numel(), calibrator.num_classes
        self._calibrator, self._frames, self._seed = calibrator, frames, seed
        self._scales, self._classes = scales, classes
        self._quota = min(SAMPLE, frames.largest_sample)
        self._sample = frames.draw({0: self._quota}, seed)[0]
        self.low = torch.cat([torch.full((scales,), SMALLEST_SCALE), torch.full((classes,), -LARGEST)]).double()
        self.high = torch.full((scales + classes,), LARGEST, dtype=torch.float64)
        self.blocks = [0]
        self.names = [f"scale[{i}]" for i in range(scales)] + [f"bias[{i}]" for i in range(classes)]
        self.block_weights = torch.ones(1, dtype=torch.float64)
        self._squares = torch.zeros(len(self.low), len(self.low), dtype=torch.float64)
        self.anchor = torch.zeros_like(self.low)

    def start(self) -> Tensor:
        """Return the calibrator's scale and bias."""
        return torch.cat([self._calibrator.scale, self._calibrator.bias]).detach().double().cpu()[None]

    def coarse(self) -> "VectorProblem":
        """Return the problem on the sample of the Hessian."""
        small = copy.copy(self)
        small._frames = self._frames.restricted_to({0: self._sample})
        return small

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Set the calibrator's scale and bias."""
        self._calibrator.scale.copy_(theta[0, : self._scales])
        self._calibrator.bias.copy_(theta[0, self._scales :])

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths: of the scales' spread and the biases' size, whose limit is temperature scaling."""
        scales, classes, (lam, mu, _) = self._scales, self._classes, strengths
        centre = torch.eye(scales, dtype=torch.float64) - 1 / scales
        self._squares = torch.block_diag(2 * lam / scales * centre, 2 * mu / classes * torch.eye(classes).double())

    def penalty_product(self, change: Tensor) -> Tensor:
        """Return the product of the Hessian of the penalty with ``change``."""
        return self._squares @ change

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return objective and gradient in one pass."""
        value, gradient = 0.0, torch.zeros(2, self._classes, dtype=torch.float64)
        for _, block in self._frames.blocks([0]):
            step = max(256, STEP_VALUES // self._classes)
            for start in range(0, block.target.numel(), step):
                part = slice(start, start + step)
                own = Block(block.features[:, part], block.target[part], block.weight[part], block.hard[part])
                own_value, own_gradient = self._terms(own, theta[0])
                value += own_value
                gradient += own_gradient
        total = self._frames.total_weight
        penalty, push = self.penalty(theta[0])
        flat = self._reduce(gradient.flatten()) / total + push
        return torch.tensor([value / total + penalty], dtype=torch.float64), flat[None]

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the Hessian, estimated on the sample."""
        z, w = self._sample.features.double(), self._sample.weight.double()
        p = torch.softmax(self._scores(z, theta), dim=0)
        both = torch.cat([p * z, p])
        hessian = -(both * w) @ both.T
        classes = self._classes
        index = torch.arange(classes, device=z.device)
        for rows, columns, power in ((0, 0, 2), (0, classes, 1), (classes, 0, 1), (classes, classes, 0)):
            hessian[rows + index, columns + index] += (w * p * z**power).sum(1)
        matrix = self._reduce(self._reduce(hessian.cpu()).T)
        return DenseCurvature(matrix / self._frames.total_weight + self._squares)

    def refine(self, block: int) -> bool:
        """Draw four times as many voxels for the Hessian."""
        if self._quota >= min(self._frames.counts[0], self._frames.largest_sample):
            return False
        self._quota = min(4 * self._quota, self._frames.largest_sample)
        self._sample = self._frames.draw({0: self._quota}, self._seed)[0]
        return True

    def _terms(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        z, w, t = block.features.double(), block.weight.double(), block.target.long()[None]
        log_probs = self._scores(z, theta).log_softmax(0)
        value = -float((w * log_probs.gather(0, t)[0]).sum())
        residual = log_probs.exp().scatter_add(0, t, -torch.ones_like(log_probs[:1])) * w
        return value, torch.stack([(residual * z).sum(1), residual.sum(1)]).cpu()

    def _scores(self, z: Tensor, theta: Tensor) -> Tensor:
        theta = theta.to(z.device)
        return theta[: self._scales, None] * z + theta[self._scales :, None]

    def _reduce(self, rows: Tensor) -> Tensor:
        """Add up the entries of a common scale."""
        if self._scales > 1:
            return rows
        return torch.cat([rows[: self._classes].sum(0, keepdim=True), rows[self._classes :]])


def vector_frame(calibrator: VectorScaling) -> Callable[[Tensor], Frame]:
    """Return how logits become features: as they are, or with the winner at zero where the offset must not matter."""
    if calibrator.translation_invariant:
        return lambda logits: Frame(logits - logits.amax(1, keepdim=True))
    return Frame
