r"""A projected Newton method for independent convex problems in a box, run to a stated residual.

Problem e minimises :math:`f_e(\theta_e)` over :math:`l \le \theta_e \le u`. One iteration asks for the gradients of
all unfinished problems in one pass over the data, then solves for each

.. math:: \min_d\ g^\top d + \tfrac12 d^\top H d \quad\text{subject to}\quad l \le \theta + d \le u

and moves by the largest :math:`t \in \{1, \tfrac12, \tfrac14, \dots\}` that decreases :math:`f_e` enough. The value
and gradient are exact; H may come from a sample of the voxels. Where it serves badly (short steps, slow decrease of
the residual), a larger sample is drawn.

The residual is the largest component of the projected gradient: of g, without the components that push against
an active bound. It is finished when this is at most `tol` *and* the decrease that the model still predicts is at most
`tol` / 10. A flat direction can hide a loss behind a small gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from segcal.calibrators.convex import Strengths

MAX_ITERATIONS = 200
SUFFICIENT = 1e-4
SHORTEST_STEP = 2.0**-30
# Relative to each diagonal entry: features of size 1e4 and biases differ by 1e8 in curvature, and damping that is small
# for the one is not for the other. Directions that no probability depends on (gauges) have no curvature at all.
DAMPING = 1e-12


class Curvature:
    """A Hessian as a symmetric matrix, damped where it has no curvature; one too large: see `trust_region`."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix + torch.diag(_damping(matrix))
        assert bool(torch.isfinite(self._matrix.sum())), "the Hessian is not finite"

    def product(self, vector: Tensor) -> Tensor:
        """Return H v."""
        return self._matrix @ vector

    def solve(self, right: Tensor, free: Tensor) -> Tensor:
        """Return v with H v = right in the components where `free` is True, and v = 0 elsewhere.

        By Cholesky, with more damping where rounding made it indefinite.
        """
        index = free.nonzero().squeeze(1)
        matrix = self._matrix if len(index) == len(free) else self._matrix[index[:, None], index]
        factor, failed = torch.linalg.cholesky_ex(matrix)
        more = 10.0
        while int(failed):
            factor, failed = torch.linalg.cholesky_ex(matrix + torch.diag(more * _damping(matrix)))
            more *= 10
        solution = torch.zeros_like(right)
        solution[index] = torch.cholesky_solve(right[index, None], factor)[:, 0]
        return solution


def _damping(matrix: Tensor) -> Tensor:
    diagonal = matrix.diagonal()
    return DAMPING * diagonal.clamp(min=1e-12 * max(float(diagonal.amax()), 1.0))


@dataclass(frozen=True)
class Products:
    """A Hessian by its products v -> H v, and an approximate solution of H u = v: linear, symmetric, positive."""

    multiply: Callable[[Tensor], Tensor]
    precondition: Callable[[Tensor], Tensor]


class BlockProblem(ABC):
    """Independent convex problems that share their passes over the data; bounds are ``(P,)``, or ``(E, P)``."""

    low: Tensor
    high: Tensor

    @abstractmethod
    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return values ``(E,)`` and gradients ``(E, P)``; entries of blocks not asked for are meaningless."""

    @abstractmethod
    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the (estimated) Hessian of one block at ``theta`` ``(P,)``."""

    def products(self, block: int, theta: Tensor, fresh: bool) -> Products:
        """Return the same by its products, for a Hessian that is too large for a matrix.

        The preconditioner may be that of an earlier point, unless a `fresh` one is asked for.
        """
        raise NotImplementedError(f"{type(self).__name__} has no products")

    def refine(self, block: int) -> bool:
        """Improve the estimate of the Hessian of a block; return False if it cannot be improved, or is exact."""
        return False


class ConvexProblem(BlockProblem):
    """An objective with one block of variables per expert, without a penalty, unless a subclass has one.

    Attributes:
        num_blocks: E.
        blocks: the experts that have voxels; the others keep their parameters.
        names: the name of each of the P variables.
        block_weights: ``(E,)`` share of the voxels that each expert has.
        anchor: ``(P,)``, where the penalty of a block is zero.
        inner: ``(E, P)``, whose upper bound is part of the model and not outer; None of none.
        large: whether the Hessian of a block does not fit, and has products alone.
    """

    num_blocks: int = 1
    blocks: list[int]
    names: list[str]
    block_weights: Tensor
    anchor: Tensor
    inner: Tensor | None = None
    large = False

    @abstractmethod
    def coarse(self) -> "ConvexProblem | None":
        """Return the same objective on few voxels, for a first approach; None where few would mislead it."""

    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths of the penalty, and the temperature that `nu` pulls to."""

    def penalty(self, theta: Tensor, block: int = 0) -> tuple[float, Tensor]:
        """Return the penalty of one block at ``theta`` ``(P,)`` and its gradient."""
        return 0.0, torch.zeros_like(theta)

    def penalties(self, theta: Tensor) -> Tensor:
        """Return each block's penalty ``(E,)``; zero for blocks without voxels."""
        penalties = torch.zeros(len(theta), dtype=torch.float64)
        for block in self.blocks:
            penalties[block] = self.penalty(theta[block], block)[0]
        return penalties


@dataclass
class Solution:
    """Where the method stopped: for E blocks, theta ``(E, P)``, objectives and residuals ``(E,)``.

    `evaluations` counts the passes over the data; `converged` says whether every block met the tolerance.
    """

    theta: Tensor
    values: Tensor
    residuals: Tensor
    evaluations: int
    converged: bool


def projected_gradient(theta: Tensor, gradient: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the gradient without the components that push against an active bound."""
    held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
    return torch.where(held, 0.0, gradient)


def minimise(
    problem: BlockProblem,
    start: Tensor,
    blocks: list[int],
    tol: float,
    tick: Callable[[float], None] = lambda residual: None,
) -> Solution:
    """Minimise every block from ``start`` ``(E, P)``."""
    low, high = problem.low.expand_as(start), problem.high.expand_as(start)
    theta = torch.clamp(start, low, high)
    values, gradients = problem.evaluate(theta, blocks)
    evaluations, open_blocks = 1, list(blocks)
    residuals = torch.zeros(len(theta), dtype=theta.dtype)
    for _ in range(MAX_ITERATIONS):
        steps: dict[int, Tensor] = {}
        for block in open_blocks:
            before = float(residuals[block])
            within = low[block], high[block]
            residuals[block] = projected_gradient(theta[block], gradients[block], *within).abs().amax()
            if tol < float(residuals[block]) and 0 < before < 2 * float(residuals[block]):
                problem.refine(block)
            step, decrease = _newton_step(problem, block, theta[block], gradients[block], *within)
            if float(residuals[block]) > tol or decrease > tol / 10:
                steps[block] = step
        open_blocks = sorted(steps)
        tick(float(residuals.max()))
        if not open_blocks:
            break
        moved, count = _line_search(problem, theta, values, gradients, steps)
        evaluations += count
        # A block that cannot move any more has reached the rounding of its objective.
        stuck = [block for block in open_blocks if block not in moved and not problem.refine(block)]
        open_blocks = [block for block in open_blocks if block not in stuck]
        if not open_blocks:
            break
    # Once more: the last step may have moved a block after its residual was taken.
    residuals[blocks] = projected_gradient(theta[blocks], gradients[blocks], low[blocks], high[blocks]).abs().amax(1)
    return Solution(theta, values, residuals, evaluations, bool((residuals[blocks] <= tol).all()))


def _newton_step(
    problem: BlockProblem, block: int, theta: Tensor, gradient: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, float]:
    """Return the step of one block, and the decrease that the model predicts for it."""
    curvature = problem.curvature(block, theta)
    step = box_step(gradient, curvature, low - theta, high - theta)
    decrease = -float(gradient @ step + 0.5 * step @ curvature.product(step))
    return step, decrease


def _line_search(
    problem: BlockProblem, theta: Tensor, values: Tensor, gradients: Tensor, steps: dict[int, Tensor]
) -> tuple[set[int], int]:
    """Move each block along its step; update the arrays in place; return the blocks that moved and the passes."""
    length = dict.fromkeys(steps, 1.0)
    low, high = problem.low.expand_as(theta), problem.high.expand_as(theta)
    waiting, moved, passes = set(steps), set[int](), 0
    while waiting:
        trial = theta.clone()
        for block in waiting:
            trial[block] = _within(theta[block] + length[block] * steps[block], low[block], high[block])
        new_values, new_gradients = problem.evaluate(trial, sorted(waiting))
        passes += 1
        for block in sorted(waiting):
            slope = float(gradients[block] @ (trial[block] - theta[block]))
            rounding = 1e-14 * (1 + abs(float(values[block])))
            if new_values[block] <= values[block] + SUFFICIENT * slope + rounding:
                theta[block], values[block], gradients[block] = trial[block], new_values[block], new_gradients[block]
                moved.add(block)
                waiting.discard(block)
                if length[block] < 0.5:
                    problem.refine(block)
            elif length[block] < SHORTEST_STEP:
                waiting.discard(block)
            length[block] /= 2 if length[block] > 0.25 else 8
    return moved, passes


def _within(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return theta between its bounds, and on a bound where only rounding keeps it off."""
    near = (theta - low).abs() <= 1e-14 * low.abs().nan_to_num(posinf=0.0)
    return torch.where(near, low, torch.clamp(theta, low, high))


def box_step(gradient: Tensor, curvature: Curvature, low: Tensor, high: Tensor) -> Tensor:
    """Return the minimiser of the quadratic model within bounds on the step.

    Projected Newton: solve in the free components, project, and accept if the model decreases. Otherwise go along
    the direction to the first bound in the way, which always decreases it.
    """
    step = torch.zeros_like(gradient)
    slope = gradient.clone()
    target = 1e-2 * float(projected_gradient(step, slope, low, high).abs().amax())
    for _ in range(3 * len(gradient) + 30):
        if float(projected_gradient(step, slope, low, high).abs().amax()) <= target:
            break
        direction = _free_direction(step, slope, curvature, low, high)
        change = _projected_change(step, slope, direction, curvature, low, high)
        if change is None:
            break
        step, slope = torch.clamp(step + change, low, high), slope + curvature.product(change)
    return step


def _free_direction(step: Tensor, slope: Tensor, curvature: Curvature, low: Tensor, high: Tensor) -> Tensor:
    """Return the Newton direction in the components that neither slope nor direction push against a bound."""
    at_low, at_high = step <= low, step >= high
    held = (at_low & (slope > 0)) | (at_high & (slope < 0))
    while True:
        direction = -curvature.solve(slope, ~held)
        blocked = ((at_low & (direction < 0)) | (at_high & (direction > 0))) & ~held
        if not bool(blocked.any()):
            return direction
        held = held | blocked


def _projected_change(
    step: Tensor, slope: Tensor, direction: Tensor, curvature: Curvature, low: Tensor, high: Tensor
) -> Tensor | None:
    for length in (1.0, 0.5, 0.25, 0.125):
        change = torch.clamp(step + length * direction, low, high) - step
        first = float(slope @ change)
        if first < 0 and first + 0.5 * float(change @ curvature.product(change)) <= 0.1 * first:
            return change
    room = torch.where(direction < 0, low - step, high - step) / direction
    room = torch.where(direction == 0, torch.inf, room)
    change = min(1.0, float(room.amin())) * direction
    return change if float(slope @ change) < 0 else None
