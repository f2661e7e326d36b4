r"""The convex problem of a calibrator whose scores are linear in its variables: mean NLL plus penalty.

.. math::
    \min_{\theta_1, \dots, \theta_E}\ \frac{1}{\sum_v w_v} \sum_v w_v\,\mathrm{nll}_v(\theta_{e(v)})
    + \frac1E \sum_e R(\theta_e), \qquad l \le \theta_e \le u

It falls apart into one problem per expert. Features, bounds, penalty and the terms of the likelihood are what the
calibrator declares (:mod:`segcal.calibrators.convex`). The Hessian is taken over a sample of the expert's voxels in
which hard ones are frequent (easy voxels have no curvature), as a matrix up to a size, by products beyond.

A solver goes from one choice of strengths to the next, each solution starting from the one before. The first is
approached on a small sample in which hard voxels are frequent; from there a few Newton steps on all voxels remain.
"""

import copy

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Strengths
from segcal.fitting import trust_region
from segcal.fitting.convex_problem import COARSE_TOL, ConvexProblem, TemperatureProblem, solve_temperature
from segcal.fitting.frames import Frames
from segcal.fitting.newton import Curvature, Solution, minimise
from segcal.fitting.request import Request
from segcal.fitting.trust_region import ProductProblem, Products
from segcal.fitting.voxels import VoxelSource

# Variables of one expert up to which its Hessian is a matrix, if its products are to be had.
LARGEST_MATRIX = 2000
# Multiplications that one Hessian of all experts may cost at first; a sample that serves badly is enlarged.
HESSIAN_WORK = 4e8
SMALLEST_SAMPLE_PER_VARIABLE = 12
LARGEST_FIRST_SAMPLE = 1 << 14
# By products: fewer voxels would leave too many directions without curvature.
PRODUCT_SAMPLE = 1 << 16


class LinearProblem(ConvexProblem, ProductProblem):
    """Mean NLL plus penalty of every expert of a calibrator, on frames of its voxels.

    Args:
        calibrator: what it declares; its parameters have no part in it.
        frames: the voxels.
        seed: of the samples behind the Hessians.
    """

    def __init__(self, calibrator: ConvexCalibrator, frames: Frames, seed: int) -> None:
        self._calibrator, self._frames, self._seed = calibrator, frames, seed
        self.low, self.high = calibrator.bounds()
        self.names = calibrator.variable_names()
        self.anchor = torch.zeros_like(self.low)
        self.num_blocks, self.block_weights = frames.num_experts, frames.shares
        size = len(self.low)
        self.large = size > LARGEST_MATRIX and calibrator.by_products
        quota = calibrator.first_sample
        if quota is None:
            quota = max(int(HESSIAN_WORK / (size * size * frames.num_experts)), SMALLEST_SAMPLE_PER_VARIABLE * size)
            quota = min(quota, PRODUCT_SAMPLE if self.large else LARGEST_FIRST_SAMPLE)
        quota = min(quota, frames.largest_sample)
        self._quotas = {expert: quota for expert in range(frames.num_experts) if frames.counts[expert]}
        self._samples = frames.draw(self._quotas, seed)
        self.blocks = sorted(self._quotas)
        self._squares = None if self.large else calibrator.squares()
        self._preconditioners: dict[int, tuple[Tensor, float]] = {}
        self.set_strengths(Strengths(0.0, 0.0))

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths, and the temperature that nu draws to."""
        self._strengths = strengths
        # What lam and mu square is zero there: they see no difference between this point and the origin.
        self.anchor = self._calibrator.anchor(inverse_temperature if strengths.nu else 0.0)
        if self._squares is not None:
            weighted = [s / n * square for s, (square, n) in zip(strengths, self._squares, strict=True)]
            self._penalty = torch.stack(weighted).sum(0) * (2 / self._frames.num_experts)

    def penalty_product(self, change: Tensor) -> Tensor:
        """Return the product of the Hessian of the penalty with ``change``."""
        if not any(self._strengths):
            return torch.zeros_like(change)
        if self._squares is not None:
            return self._penalty @ change
        variable = change.detach().clone().requires_grad_()
        parts = self._calibrator.penalised(variable[None])
        squares = [strength * part.square().sum() for strength, part in zip(self._strengths, parts, strict=True)]
        return torch.autograd.grad(torch.stack(squares).sum() / self._frames.num_experts, variable)[0]

    def coarse(self) -> "LinearProblem | None":
        """Return the problem on the samples of the Hessians, unless they have too few voxels for its variables."""
        if self.large:
            return None
        small = copy.copy(self)
        # Copies: what the first approach refines must not change what is known of the whole problem.
        small._quotas, small._samples = dict(self._quotas), dict(self._samples)
        small._frames = self._frames.restricted_to(small._samples)
        return small

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return objective and gradient of the experts asked for, in one pass."""
        values, gradients = torch.zeros(len(theta), dtype=torch.float64), torch.zeros_like(theta)
        for expert, block in self._frames.blocks(blocks):
            value, gradient = self._calibrator.likelihood(block, theta[expert])
            values[expert] += value / self._frames.total_weight
            gradients[expert] += gradient / self._frames.total_weight
        for expert in blocks:
            penalty, push = self.penalty(theta[expert])
            values[expert] += penalty
            gradients[expert] += push
        return values, gradients

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the Hessian of one expert, estimated on its sample."""
        bend = self._calibrator.hessian(self._samples[block], theta, self._frames.total_weight)
        return Curvature(bend + self._penalty)

    def refine(self, block: int) -> bool:
        """Draw four times as many voxels for the Hessian of this expert."""
        if self._quotas[block] >= min(self._frames.counts[block], self._frames.largest_sample):
            return False
        self._quotas[block] = min(4 * self._quotas[block], self._frames.largest_sample)
        self._samples.update(self._frames.draw({block: self._quotas[block]}, self._seed))
        return True

    def products(self, block: int, theta: Tensor, fresh: bool) -> Products:
        """Return the products with the Hessian of one expert, on its sample."""
        bend = self._calibrator.operator(self._samples[block], theta, self._frames.total_weight)
        diagonal = self._calibrator.penalty_diagonal(self._strengths)
        if fresh or block not in self._preconditioners:
            self._preconditioners[block] = _preconditioner(bend.blocks(), diagonal)
        factors, damping = self._preconditioners[block]
        rest = float(diagonal.amax()) + damping
        split = factors.shape[0] * factors.shape[1]

        def multiply(vector: Tensor) -> Tensor:
            return self.penalty_product(vector) + damping * vector + bend.multiply(vector)

        def precondition(vector: Tensor) -> Tensor:
            solved = torch.cholesky_solve(vector[:split].reshape(len(factors), -1, 1), factors)
            return torch.cat([solved.reshape(-1), vector[split:] / rest])

        return Products(multiply, precondition)


def _preconditioner(blocks: Tensor, diagonal: Tensor) -> tuple[Tensor, float]:
    """Return the factors of squares along the diagonal of a Hessian, with the penalty's, and their damping."""
    damping = 1e-9 * float(blocks.diagonal(dim1=1, dim2=2).amax()) + 1e-14
    assert bool(torch.isfinite(blocks).all()), "the Hessian is not finite"
    extra = 10 * damping
    while True:
        factors, failed = torch.linalg.cholesky_ex(blocks + torch.diag(diagonal + extra))
        if not bool(failed.any()):
            return factors, damping
        extra *= 10  # fewer voxels than variables, and rounding made it indefinite


def make_problem(calibrator: ConvexCalibrator, source: VoxelSource, request: Request) -> ConvexProblem:
    """Return the convex problem of this calibrator on these voxels."""
    if calibrator.one_temperature:
        return TemperatureProblem(source, request.device)
    frames = Frames(source, calibrator, request.config.memory, request.device)
    return LinearProblem(calibrator, frames, request.config.seed)


class Solver:
    """Solves the problem of a calibrator on given voxels, at one choice of strengths after another.

    Attributes:
        calibrator: what is fitted; :meth:`write` leaves a solution in it.
        problem: the problem.
        passes: how often the voxels were visited.
    """

    def __init__(self, calibrator: Calibrator, source: VoxelSource, request: Request) -> None:
        assert isinstance(calibrator, ConvexCalibrator)
        calibrator.prepare(voxels.logits for voxels in source)
        self.calibrator, self.problem = calibrator, make_problem(calibrator, source, request)
        self.passes = 0
        self._source, self._request = source, request
        self._theta: Tensor | None = None
        self._inverse_temperature: float | None = None

    def solve(self, strengths: Strengths, tol: float) -> Solution:
        """Go to the optimum at these strengths, from the last one."""
        problem = self.problem
        problem.set_strengths(strengths, self.inverse_temperature() if strengths.nu else 1.0)
        if self._theta is None:
            coarse, self._theta = problem.coarse(), self.calibrator.theta().detach().double().cpu()
            if strengths.nu:  # where the penalty leads to
                self._theta = problem.anchor.expand_as(self._theta).clone()
            if coarse is not None:
                self._theta = minimise(coarse, self._theta, problem.blocks, COARSE_TOL).theta
        if problem.large:
            assert isinstance(problem, trust_region.ProductProblem)
            solution = trust_region.minimise(problem, self._theta, problem.blocks, tol, self._report)
        else:
            solution = minimise(problem, self._theta, problem.blocks, tol, self._report)
        self._theta = solution.theta
        self.passes += solution.evaluations
        return solution

    def inverse_temperature(self) -> float:
        """Return the optimum of temperature scaling on the same voxels: where a strong penalty leads."""
        if self._inverse_temperature is None:
            request = self._request
            solution = solve_temperature(self._source, request.device, request.config.tol, approach=False)
            self.passes += solution.evaluations
            self._inverse_temperature = float(solution.theta)
        return self._inverse_temperature

    def write(self, theta: Tensor) -> None:
        """Leave a solution ``(E, P)`` in the calibrator."""
        self.calibrator.set_theta(theta)

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")
