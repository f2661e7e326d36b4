r"""A trust-region Newton method for independent convex problems in a box, where a Hessian is too large to be a matrix.

Problem e minimises :math:`f_e(\theta_e)` over :math:`l \le \theta_e \le u`. Components that press against a bound
are held; in the others, conjugate gradients lower the model

.. math:: m(d) = g^\top d + \tfrac12 d^\top H d, \qquad \lVert d \rVert_M \le \Delta ,

until its slope has fallen to a share of what it was, or until they leave the region, where they stop (Steihaug). M is
the preconditioner, and Delta a length in its metric. The step is cut off at the bounds, and taken if the objective
falls by a share of what the model says. How well the two agree decides the next Delta. Where a Hessian from a sample
serves badly, a larger sample is drawn.

The model is worst far from the optimum. So the start is first moved along its own ray, which for the identity map of a
new calibrator is a common temperature.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from segcal.fitting.newton import BlockProblem, Products, Solution, projected_gradient

MAX_ITERATIONS = 300
MAX_PRODUCTS = 300
# Ten more products would buy the next digit of a step; the next step brings it together with fresh curvature.
ACCURACY = 0.1
# A preconditioner costs about as much as so many products; when a step takes more, it is time for a fresh one.
STALE_AFTER = 30
# Shares of the model's decrease: above the first a step is taken, below the second the region shrinks, above the third
# it grows.
TAKEN, BAD, GOOD = 1e-4, 0.25, 0.75
SMALLEST_REGION = 1e-10
RAY_STEP = 0.7


@dataclass(frozen=True)
class Region:
    """The longest step in which the model of one block is trusted; and whether its preconditioner is made anew."""

    radius: float = math.inf
    fresh: bool = True


@dataclass(frozen=True)
class _Proposal:
    """A proposal of the model for one block.

    Attributes:
        change: ``(P,)``, within the bounds.
        decrease: of the model.
        length: of the change in the metric of the preconditioner, before the bounds cut it off.
        cut: whether the region ended it.
        products: how many it took.
    """

    change: Tensor
    decrease: float
    length: float
    cut: bool
    products: int


def minimise(
    problem: BlockProblem,
    start: Tensor,
    blocks: list[int],
    tol: float,
    tick: Callable[[float], None] = lambda residual: None,
) -> Solution:
    """Minimise every block from ``start`` ``(E, P)``; see :func:`segcal.fitting.newton.minimise`."""
    theta, values, gradients, evaluations = _best_on_ray(problem, start, blocks)
    regions = {block: Region() for block in blocks}
    for _ in range(MAX_ITERATIONS):
        steps, residuals = {}, _residuals(problem, theta, gradients)
        for block in regions:
            step = _propose(problem, block, theta[block], gradients[block], regions[block])
            if float(residuals[block]) > tol or step.decrease > tol / 10:
                steps[block] = step
        tick(float(residuals[blocks].max()) if blocks else 0.0)
        if not steps:
            break
        trial = theta.clone()
        for block, step in steps.items():
            trial[block] = theta[block] + step.change
        trial = torch.clamp(trial, problem.low, problem.high)
        new_values, new_gradients = problem.evaluate(trial, sorted(steps))
        evaluations += 1
        slow = _residuals(problem, trial, new_gradients) > 0.5 * residuals.clamp(min=tol)
        for block, step in steps.items():
            rounding = 1e-14 * (1 + abs(float(values[block])))
            agreement = (float(values[block] - new_values[block]) + rounding) / (step.decrease + rounding)
            if agreement >= TAKEN:
                theta[block], values[block], gradients[block] = trial[block], new_values[block], new_gradients[block]
            refined = (agreement < BAD or bool(slow[block] and not step.cut)) and problem.refine(block)
            regions[block] = _next_region(regions[block], step, agreement, refined)
        # Where a region has no size any more, the rounding of the objective is reached.
        regions = {block: regions[block] for block in steps if regions[block].radius > SMALLEST_REGION}
    residuals = _residuals(problem, theta, gradients)
    return Solution(theta, values, residuals, evaluations, bool((residuals[blocks] <= tol).all()))


def _best_on_ray(problem: BlockProblem, start: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the best multiple of the start, each block for itself, with values, gradients, and the passes made."""
    best = torch.clamp(start, problem.low, problem.high)
    values, gradients = problem.evaluate(best, blocks)
    factors = torch.ones(len(best), dtype=best.dtype)
    passes = 1
    # A convex function of the factor: walk down from 1 in the direction of the slope until it rises.
    slopes = (gradients * best).sum(1)
    open_blocks = [block for block in blocks if abs(float(slopes[block])) > 0]
    while open_blocks:
        trial_factors = factors.clone()
        for block in open_blocks:
            trial_factors[block] *= RAY_STEP if slopes[block] > 0 else 1 / RAY_STEP
        trial = torch.clamp(start * trial_factors[:, None], problem.low, problem.high)
        new_values, new_gradients = problem.evaluate(trial, open_blocks)
        passes += 1
        better = [block for block in open_blocks if new_values[block] < values[block] - 1e-3 * abs(values[block])]
        for block in better:
            best[block], values[block], gradients[block] = trial[block], new_values[block], new_gradients[block]
            factors[block] = trial_factors[block]
        open_blocks = better
    return best, values, gradients, passes


def _propose(problem: BlockProblem, block: int, theta: Tensor, gradient: Tensor, region: Region) -> _Proposal:
    """Return a step of one block that lowers its model, within the region and the bounds."""
    hessian = problem.products(block, theta, region.fresh)
    low, high = (bound if bound.ndim == 1 else bound[block] for bound in (problem.low, problem.high))
    held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
    direction, length, cut, products = _conjugate_gradients(hessian, gradient, ~held, region.radius)
    for _ in range(30):
        change = torch.clamp(theta + direction, low, high) - theta
        decrease = -float(gradient @ change + 0.5 * change @ hessian.multiply(change))
        if decrease > 0 or not bool(direction.any()):
            break
        direction, length, cut = 0.5 * direction, 0.5 * length, True  # the bounds turned it uphill
    return _Proposal(change, max(decrease, 0.0), length, cut, products)


def damped_factors(blocks: Tensor, diagonal: Tensor) -> tuple[Tensor, float]:
    """Return the factors of squares along the diagonal of a Hessian, with the penalty's, and their damping."""
    damping = 1e-9 * float(blocks.diagonal(dim1=1, dim2=2).amax()) + 1e-14
    assert bool(torch.isfinite(blocks).all()), "the Hessian is not finite"
    extra = 10 * damping
    while True:
        factors, failed = torch.linalg.cholesky_ex(blocks + torch.diag(diagonal + extra))
        if not bool(failed.any()):
            return factors, damping
        extra *= 10  # fewer voxels than variables, and rounding made it indefinite


def _conjugate_gradients(
    hessian: Products, gradient: Tensor, free: Tensor, radius: float
) -> tuple[Tensor, float, bool, int]:
    """Return a step in the free components, its length in the preconditioner's metric, whether it was cut, products."""
    step = torch.zeros_like(gradient)
    rest = torch.where(free, -gradient, 0.0)
    z = torch.where(free, hessian.precondition(rest), 0.0)
    direction, rho, goal = z.clone(), float(rest @ z), ACCURACY * float(rest.norm())
    # Of step and direction in the metric of the preconditioner: squares and product, from recurrences.
    step_step, step_direction, direction_direction = 0.0, 0.0, rho
    for made in range(MAX_PRODUCTS):
        if float(rest.norm()) <= goal or rho <= 0:
            break
        image = torch.where(free, hessian.multiply(direction), 0.0)
        bend = float(direction @ image)
        length = rho / bend if bend > 0 else math.inf
        longer = step_step + 2 * length * step_direction + length**2 * direction_direction
        if not longer < radius**2:
            if math.isinf(radius):
                break  # no curvature at all in this direction, and no region yet: stay with what is there
            root = math.sqrt(step_direction**2 + direction_direction * (radius**2 - step_step))
            return step + (root - step_direction) / direction_direction * direction, radius, True, made + 1
        step += length * direction
        rest = rest - length * image
        z = torch.where(free, hessian.precondition(rest), 0.0)
        previous, rho = rho, float(rest @ z)
        step_step, step_direction = longer, rho / previous * (step_direction + length * direction_direction)
        direction_direction = rho + (rho / previous) ** 2 * direction_direction
        direction = z + (rho / previous) * direction
    return step, math.sqrt(max(step_step, 0.0)), False, made


def _next_region(region: Region, step: _Proposal, agreement: float, refined: bool) -> Region:
    fresh = refined or step.products > STALE_AFTER
    if agreement < BAD and not refined:
        return Region(0.25 * min(region.radius, step.length), fresh)
    return Region(4 * region.radius if agreement > GOOD and step.cut else region.radius, fresh)


def _residuals(problem: BlockProblem, theta: Tensor, gradients: Tensor) -> Tensor:
    """Return the largest component of each block's projected gradient."""
    return projected_gradient(theta, gradients, problem.low, problem.high).abs().amax(1)
