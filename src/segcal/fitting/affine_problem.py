r"""The convex problem of a calibrator with affine scores.

.. math::
    \min_{\theta_1, \dots, \theta_E}\ \frac{1}{\sum_v w_v} \sum_v w_v\,\mathrm{nll}_v(\theta_{e(v)})
    + \frac1E \sum_e R(\theta_e), \qquad \theta_e = (W_e, b_e, \text{gauge}_e)

It falls apart into one problem per expert. The Hessian of the likelihood of one expert is

.. math:: \sum_v w_v\, J^\top(\mathrm{diag}\,p_v - p_v p_v^\top) J \otimes x_v x_v^\top ,

taken over a sample of its voxels in which hard ones are frequent (easy voxels have no curvature), as a matrix up to
a size, by products beyond.
"""

import copy

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator
from segcal.fitting.affine_variables import (
    bounds,
    names,
    pack,
    penalised,
    penalty_matrices,
    temperature_point,
    write,
)
from segcal.fitting.convex_problem import ConvexProblem, Strengths
from segcal.fitting.curvature import DenseCurvature
from segcal.fitting.frames import Block, Frames
from segcal.fitting.newton import Curvature
from segcal.fitting.trust_region import ProductProblem, Products
from segcal.kernels import affine_numba, affine_torch

# Variables of one expert up to which its Hessian is a matrix.
LARGEST_MATRIX = 2000
# Multiplications that one Hessian of all experts may cost at first; a sample that serves badly is enlarged.
HESSIAN_WORK = 4e8
SMALLEST_SAMPLE_PER_VARIABLE = 12
LARGEST_FIRST_SAMPLE = 1 << 14
# By products: fewer voxels would leave too many directions without curvature.
PRODUCT_SAMPLE = 1 << 16
# Values in one step of a Hessian: bounds its memory whatever the size of the sample.
STEP_VALUES = 1 << 22


class AffineProblem(ConvexProblem, ProductProblem):
    """Mean NLL plus Eq. 15 for every expert of an affine calibrator.

    Args:
        calibrator: gives the layout, the bounds and the penalty; `write` puts a result into it.
        frames: the voxels.
        seed: of the samples behind the Hessians.
    """

    def __init__(self, calibrator: AffineCalibrator, frames: Frames, seed: int) -> None:
        self._calibrator = calibrator
        self._frames, self._centre = frames, frames.centre
        self._seed = seed
        self._outputs = calibrator.outputs
        self._rows, self._features = calibrator.weight.shape[-2:]
        self.low, self.high = bounds(calibrator)
        self._strengths = Strengths(0.0, 0.0)
        self.anchor = torch.zeros_like(self.low)
        size = len(self.low)
        quota = max(int(HESSIAN_WORK / (size * size * frames.num_experts)), SMALLEST_SAMPLE_PER_VARIABLE * size)
        quota = min(quota, LARGEST_FIRST_SAMPLE if size <= LARGEST_MATRIX else PRODUCT_SAMPLE, frames.largest_sample)
        self._quotas = {expert: quota for expert in range(frames.num_experts) if frames.counts[expert]}
        self._samples = frames.draw(self._quotas, seed)
        self._squares = penalty_matrices(calibrator) if size <= LARGEST_MATRIX else None
        self.num_blocks = frames.num_experts
        self.blocks = sorted(self._quotas)
        self.names = names(calibrator)
        self.large = size > LARGEST_MATRIX
        self._preconditioners: dict[int, tuple[Tensor, float]] = {}
        self.block_weights = frames.shares

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths, and the temperature that the diagonals are drawn to."""
        self._strengths = strengths
        # Off-diagonals and offsets are zero there: lam and mu see no difference between this point and the origin.
        self.anchor = temperature_point(self._calibrator, inverse_temperature if strengths.nu else 0.0)

    def start(self) -> Tensor:
        """Return the calibrator's own parameters as ``(E, P)``."""
        return pack(self._calibrator)

    def coarse(self) -> "AffineProblem | None":
        """Return the problem on the samples of the Hessians, unless they have too few voxels for its variables."""
        if self.large:
            return None
        small = copy.copy(self)
        # Copies: what the first approach refines must not change what is known of the whole problem.
        small._quotas, small._samples = dict(self._quotas), dict(self._samples)
        small._frames = self._frames.restricted_to(small._samples)
        return small

    def write(self, theta: Tensor) -> None:
        """Set the calibrator's weight, bias and gauge."""
        write(self._calibrator, theta)

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return objective and gradient of the experts asked for, in one pass."""
        values = torch.zeros(len(theta), dtype=torch.float64)
        gradients = torch.zeros_like(theta)
        split = self._rows * (self._features + 1)
        for expert, block in self._frames.blocks(blocks):
            value, gradient = self._likelihood(block, self._own(theta[expert], block))
            values[expert] += value / self._frames.total_weight
            gradients[expert, :split] += self._centre.outward(gradient).reshape(-1).cpu() / self._frames.total_weight
        for expert in blocks:
            penalty, push = self.penalty(theta[expert])
            values[expert] += penalty
            gradients[expert] += push
        return values, gradients

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the Hessian of one expert, estimated on its sample."""
        sample = self._samples[block]
        split = self._rows * (self._features + 1)
        bend = likelihood_hessian(sample, self._own(theta, sample), self._outputs).cpu() / self._frames.total_weight
        for _ in range(2):  # from both sides
            bend = self._centre.outward(bend.T.reshape(split, self._rows, -1)).reshape(split, split)
        matrix = self._penalty_matrix()
        matrix[:split, :split] += bend
        return DenseCurvature(matrix)

    def refine(self, block: int) -> bool:
        """Draw four times as many voxels for the Hessian of this expert."""
        if self._quotas[block] >= min(self._frames.counts[block], self._frames.largest_sample):
            return False
        self._quotas[block] = min(4 * self._quotas[block], self._frames.largest_sample)
        self._samples.update(self._frames.draw({block: self._quotas[block]}, self._seed))
        return True

    def _own(self, theta: Tensor, block: Block) -> Tensor:
        """Return (W, b) of one expert for features about their centre, where these are."""
        split = self._rows * (self._features + 1)
        own = self._centre.inward(theta[:split].reshape(self._rows, -1).to(block.features.device))
        if self._outputs == "scores" and self._centre.mean is not None:
            own[:, -1] -= own[:, -1].max().clone()
        return own

    def _likelihood(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        fused = block.features.device.type == "cpu" and self._rows <= affine_numba.LARGEST_OUTPUTS
        kernel = affine_numba if fused else affine_torch
        return kernel.likelihood(block.features, block.target, block.weight, theta, self._outputs)

    def _penalty_matrix(self) -> Tensor:
        assert self._squares is not None
        weighted = [strength * square for strength, square in zip(self._strengths, self._squares, strict=True)]
        return torch.stack(weighted).sum(0) * (2 / self._frames.num_experts)

    def penalty_product(self, change: Tensor) -> Tensor:
        """Return the product of the Hessian of the penalty with ``change``."""
        if not any(self._strengths):
            return torch.zeros_like(change)
        if self._squares is not None:
            return self._penalty_matrix() @ change
        variable = change.detach().clone().requires_grad_()
        parts = penalised(self._calibrator, variable[None])
        squares = [strength * part.square().sum() for strength, part in zip(self._strengths, parts, strict=True)]
        return torch.autograd.grad(torch.stack(squares).sum() / self._frames.num_experts, variable)[0]

    def products(self, block: int, theta: Tensor, fresh: bool) -> Products:
        """Return the products with the Hessian of one expert, on its sample."""
        sample, total = self._samples[block], self._frames.total_weight
        split = self._rows * (self._features + 1)
        own = self._own(theta, sample)
        bend = affine_torch.hessian_operator(sample.features, sample.weight, own, self._outputs)
        if fresh or block not in self._preconditioners:
            self._preconditioners[block] = self._preconditioner(sample, own)
        factors, damping = self._preconditioners[block]

        def multiply(vector: Tensor) -> Tensor:
            image = self.penalty_product(vector) + damping * vector
            direction = self._centre.inward(vector[:split].reshape(self._rows, -1).to(own.device))
            image[:split] += self._centre.outward(bend(direction)).reshape(-1).cpu() / total
            return image

        rest = float(self._typical_penalty().amax()) + damping

        def precondition(vector: Tensor) -> Tensor:
            solved = torch.cholesky_solve(vector[:split].reshape(self._rows, -1, 1), factors)
            return torch.cat([solved.reshape(-1), vector[split:] / rest])

        return Products(multiply, precondition)

    def _preconditioner(self, sample: Block, theta: Tensor) -> tuple[Tensor, float]:
        """Return the factors of the blocks of the Hessian that belong to one output each, and their damping."""
        blocks = affine_torch.hessian_blocks(sample.features, sample.weight, theta, self._outputs).cpu()
        for _ in range(2):  # from both sides
            blocks = self._centre.outward(blocks.mT)
        blocks = blocks / self._frames.total_weight
        damping = 1e-9 * float(blocks.diagonal(dim1=1, dim2=2).amax()) + 1e-14
        assert bool(torch.isfinite(blocks).all()), "the Hessian is not finite"
        extra = 10 * damping
        while True:
            factors, failed = torch.linalg.cholesky_ex(blocks + torch.diag(self._typical_penalty() + extra))
            if not bool(failed.any()):
                return factors, damping
            extra *= 10  # fewer voxels than variables, and rounding made it indefinite

    def _typical_penalty(self) -> Tensor:
        """Return about what the penalty adds to the diagonal of the Hessian of one output."""
        (lam, mu, nu), classes = self._strengths, self._calibrator.num_classes
        share = 2 / self._frames.num_experts
        weights = lam / (classes * (classes - 1)) + nu / classes**2  # one entry of a row is on the diagonal
        penalty = torch.full((self._features + 1,), share * weights, dtype=torch.float64)
        penalty[-1] = share * mu / classes
        return penalty


def likelihood_hessian(block: Block, theta: Tensor, outputs: str) -> Tensor:
    """Return the Hessian of the summed NLL in ``theta`` flattened, ``(K (F + 1), K (F + 1))``."""
    rows, columns = theta.shape
    size = rows * columns
    products, own = theta.new_zeros(size, size), theta.new_zeros(size, columns)
    step = max(256, STEP_VALUES // size)
    for start in range(0, block.target.numel(), step):
        features, weight = block.features[:, start : start + step], block.weight[start : start + step]
        probs = affine_torch.probabilities(features, theta, outputs)
        x = torch.cat([features.double(), torch.ones_like(features[:1], dtype=torch.float64)])
        spread = (probs[:, None] * x[None]).reshape(size, -1)
        weighted = spread * weight.double()
        products += weighted @ spread.T
        own += weighted @ x.T
    blocks, hessian = own.reshape(rows, columns, columns), -products.reshape(rows, columns, rows, columns)
    index = torch.arange(rows, device=theta.device)
    if outputs == "stacked_drops":
        later = torch.maximum(index[:, None], index[None])  # two drops act together on all classes below both
        hessian += blocks[later].permute(0, 2, 1, 3)
    else:
        hessian[index, :, index, :] += blocks
    return hessian.reshape(size, size)
