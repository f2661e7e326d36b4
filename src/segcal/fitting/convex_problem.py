r"""The convex problem of a calibrator whose scores are linear in its variables: mean NLL plus penalty on given voxels.

.. math::
    \min_{\theta_1, \dots, \theta_E}\ \frac{1}{\sum_v w_v} \sum_v w_v\,\mathrm{nll}_v(\theta_{e(v)})
    + \frac1E \sum_e R(\theta_e), \qquad l \le \theta_e \le u

It falls apart into one problem per expert. Features, bounds, penalty and the terms of the likelihood are what the
calibrator declares (:mod:`segcal.calibrators.convex`). The Hessian is taken over a sample of the expert's voxels in
which hard ones are frequent (easy voxels have no curvature). Up to a size it is a matrix, beyond it is applied as
products.

The problem of temperature scaling, to which all penalties lead, has one variable, and its exact second derivative
comes with every pass.
"""

import copy
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import LARGEST, SMALLEST_SCALE, ConvexCalibrator, Strengths
from segcal.fitting import trust_region
from segcal.fitting.evidence import Shrinkage, shrinkage
from segcal.fitting.frames import Frames
from segcal.fitting.newton import ConvexProblem, Curvature, Products, Solution, minimise
from segcal.fitting.request import Request
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.kernels.affine_numba import temperature_terms

# A first approach on few voxels need not be exact.
COARSE_TOL = 1e-4
# From this strength on the optimum is next to where the penalty leads, and needs no approach.
STRONG = 1e3
# That of a temperature uses every 16th voxel, or fewer: it keeps them, also where the voxels are streamed.
COARSE_STRIDE = 16
COARSE_VOXELS = 1 << 18
# Variables of one expert up to which its Hessian is a matrix, if its products are to be had.
LARGEST_MATRIX = 2000
# Multiplications that one Hessian of all experts may cost at first; a sample that serves badly is enlarged.
HESSIAN_WORK = 4e8
SMALLEST_SAMPLE_PER_VARIABLE = 12
LARGEST_FIRST_SAMPLE = 1 << 14
# By products: fewer voxels would leave too many directions without curvature.
PRODUCT_SAMPLE = 1 << 16
# Numbers of the Hessians of all experts up to which the last ones are kept.
KEPT_HESSIANS = 1 << 22
# Where strengths are chosen, no coefficient is larger (times the inverse temperature, if that is above one): a gap of
# one nat is not made more than so many. Two in a billion are as good as never, and cost 20 nats where they happen.
MOST_STEEP = 20.0
# What belongs to a class makes a slope larger by at most so much of the inverse temperature. A class that is more
# confident than all others at one site is not so at the next: with twice as much, single street scenes at dusk lost
# 0.1 nats.
STEEPER = 0.2


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
        beta, kept = float(theta[0, 0]), self._batches()
        sums = torch.zeros(3, dtype=torch.float64)
        for own in [_terms(beta, self._device, "", kept)] if kept is not None else self._streamed(beta):
            sums += own
        sums /= self._weight
        self._second = sums[2].reshape(1, 1)
        return sums[:1].clone(), sums[1].reshape(1, 1)

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the second derivative at the last point that was evaluated."""
        return Curvature(self._second.clone())

    def _streamed(self, beta: float) -> Iterator[Tensor]:
        return self._source.each_case(partial(_terms, beta, self._device))

    def _batches(self) -> list[Voxels] | None:
        """Return the voxels that are kept; None where they are streamed."""
        if self._kept is not None or (self._source.streamed and self._stride == 1):
            return self._kept
        parts = self._source.each_case(partial(_every, self._stride))
        self._kept = [voxels.each(lambda x: x.to(self._device)) for part in parts for voxels in part]
        if self._stride > 1:
            self._weight = sum(float(voxels.weight.sum(dtype=torch.float64)) for voxels in self._kept)
        return self._kept


def _terms(beta: float, device: torch.device, case_id: str, batches: Iterable[Voxels]) -> Tensor:
    """Return the sums of the likelihood and its derivatives over batches."""
    sums = torch.zeros(3, dtype=torch.float64)
    for voxels in batches:
        logits, labels, weight = (x.contiguous().to(device) for x in voxels[:3] if x is not None)
        sums += torch.tensor(temperature_terms(logits, labels, weight, beta), dtype=torch.float64)
    return sums


def case_terms(beta: float, case_id: str, batches: Iterable[Voxels]) -> list[float]:
    """Return the mean NLL of voxels at an inverse temperature, and its first and second derivative."""
    kept = list(batches)
    total = sum(float(voxels.weight.sum(dtype=torch.float64)) for voxels in kept)
    return (_terms(beta, torch.device("cpu"), case_id, kept) / max(total, 1e-300)).tolist()


def _every(stride: int, case_id: str, batches: Iterable[Voxels]) -> list[Voxels]:
    return [voxels.each(lambda x: x[..., ::stride].contiguous()) for voxels in batches]


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


class LinearProblem(ConvexProblem):
    """Mean NLL plus penalty of every expert of a calibrator, on frames of its voxels.

    It is what the calibrator declares: its parameters have no part in it. The seed is that of the Hessians' samples,
    `shrink` what few groups make of the penalty.
    """

    def __init__(
        self, calibrator: ConvexCalibrator, frames: Frames, seed: int, shrink: Shrinkage | None = None
    ) -> None:
        self._calibrator, self._frames, self._seed, self._shrink = calibrator, frames, seed, shrink
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
        self._forget()
        self.set_strengths(Strengths(0.0, 0.0))

    def _forget(self) -> None:
        # Of the likelihood at the last point of each expert, where the path of strengths goes on: it knows no strength.
        self._values: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._bends: dict[int, tuple[Tensor, Tensor]] = {}

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths, and the temperature that nu pulls to."""
        self._strengths = strengths
        # What lam and mu square is zero there: they see no difference between this point and the origin.
        self.anchor = self._calibrator.anchor(inverse_temperature if strengths.nu else 0.0)
        self.low, self.high = self._calibrator.bounds()
        self._roots: Tensor | None = None
        if strengths.nu:
            most = self.high.where(self.high.isinf(), MOST_STEEP * max(1.0, inverse_temperature))  # a gauge is free
            self.low, self.high = self.low.maximum(-most), self.high.minimum(most)
        if strengths.nu and self._shrink is not None:
            self._roots = self._shrink.factors(strengths.nu).sqrt()
            if self._calibrator.steepens:
                self.inner = self._shrink.behind.isfinite()
                self.high = torch.where(self.inner, STEEPER * inverse_temperature, self.high)
            self.low, self.high = (torch.where(self._shrink.frozen, self.anchor, x) for x in (self.low, self.high))
        if self._squares is not None:
            weighted = [s * square for s, square in zip(strengths, self._squares, strict=True)]
            self._penalty = torch.stack(weighted).sum(0) * (2 / self._frames.num_experts)

    def penalty(self, theta: Tensor, block: int = 0) -> tuple[float, Tensor]:
        """Return the penalty of one expert at ``theta`` ``(P,)`` and its gradient."""
        change = theta - self.anchor
        push = self._penalty_product(change, block)
        return 0.5 * float(change @ push), push

    def _penalty_product(self, change: Tensor, block: int) -> Tensor:
        """Return the product of the (constant) Hessian of the penalty with ``change`` ``(P,)``."""
        if not any(self._strengths):
            return torch.zeros_like(change)
        roots = 1.0 if self._roots is None else self._roots[block]
        if self._squares is not None:
            return roots * (self._penalty @ (roots * change))
        variable = (roots * change).detach().clone().requires_grad_()
        parts = self._calibrator.penalised(variable[None])
        squares = [strength * part.square().sum() for strength, part in zip(self._strengths, parts, strict=True)]
        return roots * torch.autograd.grad(torch.stack(squares).sum() / self._frames.num_experts, variable)[0]

    def coarse(self) -> "LinearProblem | None":
        """Return the problem on the samples of the Hessians, unless they have too few voxels for its variables."""
        if self.large:
            return None
        small = copy.copy(self)
        # Copies: what the first approach refines must not change what is known of the whole problem.
        small._quotas, small._samples = dict(self._quotas), dict(self._samples)
        small._frames = self._frames.restricted_to(small._samples)
        small._forget()
        return small

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return objective and gradient of the experts asked for, in one pass."""
        values, gradients = torch.zeros(len(theta), dtype=torch.float64), torch.zeros_like(theta)
        new = [e for e in blocks if e not in self._values or not torch.equal(self._values[e][0], theta[e])]
        for expert, value, gradient in self._frames.likelihood(theta, new) if new else ():
            values[expert] += value / self._frames.total_weight
            gradients[expert] += gradient / self._frames.total_weight
        for expert in new:
            self._values[expert] = theta[expert].clone(), values[expert].clone(), gradients[expert].clone()
        for expert in blocks:
            _, values[expert], gradients[expert] = self._values[expert]
            penalty, push = self.penalty(theta[expert], expert)
            values[expert] += penalty
            gradients[expert] += push
        return values, gradients

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the Hessian of one expert, estimated on its sample."""
        kept = self._bends.get(block)
        if kept is None or not torch.equal(kept[0], theta):
            bend = self._calibrator.hessian(self._samples[block], theta, self._frames.total_weight)
            kept = theta.clone(), bend
            if len(theta) ** 2 * self.num_blocks <= KEPT_HESSIANS:
                self._bends[block] = kept
        bent = self._penalty
        if self._roots is not None:
            bent = self._roots[block][:, None] * bent * self._roots[block]
        return Curvature(kept[1] + bent)

    def refine(self, block: int) -> bool:
        """Draw four times as many voxels for the Hessian of this expert."""
        if self._quotas[block] >= min(self._frames.counts[block], self._frames.largest_sample):
            return False
        self._quotas[block] = min(4 * self._quotas[block], self._frames.largest_sample)
        self._bends.pop(block, None)
        self._samples.update(self._frames.draw({block: self._quotas[block]}, self._seed))
        return True

    def products(self, block: int, theta: Tensor, fresh: bool) -> Products:
        """Return the products with the Hessian of one expert, on its sample."""
        bend = self._calibrator.operator(self._samples[block], theta, self._frames.total_weight)
        diagonal = self._calibrator.penalty_diagonal(self._strengths)
        if self._roots is not None:
            diagonal = diagonal * self._roots[block].square().mean()
        if fresh or block not in self._preconditioners:
            self._preconditioners[block] = trust_region.damped_factors(bend.blocks(), diagonal)
        factors, damping = self._preconditioners[block]
        rest = float(diagonal.amax()) + damping
        split = factors.shape[0] * factors.shape[1]

        def multiply(vector: Tensor) -> Tensor:
            return self._penalty_product(vector, block) + damping * vector + bend.multiply(vector)

        def precondition(vector: Tensor) -> Tensor:
            solved = torch.cholesky_solve(vector[:split].reshape(len(factors), -1, 1), factors)
            return torch.cat([solved.reshape(-1), vector[split:] / rest])

        return Products(multiply, precondition)


def make_problem(
    calibrator: ConvexCalibrator, source: VoxelSource, request: Request, shrink: Shrinkage | None = None
) -> ConvexProblem:
    """Return the convex problem of this calibrator on these voxels."""
    if calibrator.one_temperature:
        return TemperatureProblem(source, request.device)
    frames = Frames(source, calibrator, request.config.memory, request.device)
    return LinearProblem(calibrator, frames, request.config.seed, shrink)


class Solver:
    """Solves the problem of a calibrator on given voxels, at one choice of strengths after another.

    Attributes:
        calibrator: what is fitted; a solution is left in it by who asks for it.
        problem: the problem.
        passes: how often the voxels were visited.
        theta: where the next solution starts; the last one, by default.
    """

    def __init__(self, calibrator: Calibrator, source: VoxelSource, request: Request) -> None:
        assert isinstance(calibrator, ConvexCalibrator)
        source = source.on(request.device)
        calibrator.prepare((voxels.logits, voxels.context) for voxels in source)
        self.shrink = shrinkage(calibrator, source, request.cases, request.config.evidence)
        self.calibrator, self.problem = calibrator, make_problem(calibrator, source, request, self.shrink)
        self.passes = 0
        self.theta: Tensor | None = None
        self._source, self._request = source, request
        self._inverse_temperature: float | None = None

    def solve(self, strengths: Strengths, tol: float) -> Solution:
        """Go to the optimum at these strengths, from the last one."""
        problem = self.problem
        problem.set_strengths(strengths, self.inverse_temperature() if strengths.nu else 1.0)
        if self.theta is None:
            self.theta = self.calibrator.theta().detach().double().cpu()
            if strengths.nu:  # where the penalty leads to
                self.theta = problem.anchor.expand_as(self.theta).clone()
            coarse = problem.coarse() if strengths.nu < STRONG else None
            if coarse is not None:
                self.theta = minimise(coarse, self.theta, problem.blocks, COARSE_TOL).theta
        method = trust_region.minimise if problem.large else minimise
        solution = method(problem, self.theta, problem.blocks, tol, self._report)
        self.theta = solution.theta
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

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")
