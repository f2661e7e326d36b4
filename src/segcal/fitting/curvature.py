"""The two forms of a Hessian: a matrix where it fits, products where it does not."""

from collections.abc import Callable

import torch
from torch import Tensor

from segcal.fitting.newton import Curvature

# Relative to each diagonal entry: features of size 1e4 and biases differ by 1e8 in curvature, and damping that is small
# for the one is not for the other. Directions that no probability depends on (gauges) have no curvature at all.
DAMPING = 1e-12


class DenseCurvature(Curvature):
    """A symmetric matrix, damped where it has no curvature."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix + torch.diag(_damping(matrix))

    def product(self, vector: Tensor) -> Tensor:
        """Return H v."""
        return self._matrix @ vector

    def solve(self, right: Tensor, free: Tensor) -> Tensor:
        """Solve in the free components by Cholesky, with more damping where rounding made it indefinite."""
        index = free.nonzero().squeeze(1)
        matrix = self._matrix[index][:, index]
        damping = _damping(matrix)
        assert bool(torch.isfinite(matrix).all()), "the Hessian is not finite"
        while True:
            factor, failed = torch.linalg.cholesky_ex(matrix)
            if not int(failed):
                break
            damping *= 10
            matrix = matrix + torch.diag(damping)
        solution = torch.zeros_like(right)
        solution[index] = torch.cholesky_solve(right[index, None], factor)[:, 0]
        return solution


def _damping(matrix: Tensor) -> Tensor:
    diagonal = matrix.diagonal()
    return DAMPING * diagonal.clamp(min=1e-12 * max(float(diagonal.amax()), 1.0))


class ProductCurvature(Curvature):
    """A Hessian known by its products, solved with by preconditioned conjugate gradients.

    Args:
        multiply: v -> H v.
        precondition: v -> M v with M close to the inverse of H, symmetric and positive definite.
        damping: added to the diagonal.
    """

    def __init__(
        self, multiply: Callable[[Tensor], Tensor], precondition: Callable[[Tensor], Tensor], damping: float
    ) -> None:
        self._multiply = multiply
        self._precondition = precondition
        self._damping = damping

    def product(self, vector: Tensor) -> Tensor:
        """Return H v."""
        return self._multiply(vector) + self._damping * vector

    def solve(self, right: Tensor, free: Tensor) -> Tensor:
        """Solve in the free components to a relative residual of 1e-2; a truncated Newton step needs no more."""
        solution = torch.zeros_like(right)
        rest = torch.where(free, right, 0.0)
        z = torch.where(free, self._precondition(rest), 0.0)
        direction, rho, goal = z.clone(), float(rest @ z), 1e-2 * float(rest.norm())
        for _ in range(250):
            if float(rest.norm()) <= goal or rho <= 0:
                break
            image = torch.where(free, self.product(direction), 0.0)
            length = rho / float(direction @ image)
            solution += length * direction
            rest = rest - length * image
            z = torch.where(free, self._precondition(rest), 0.0)
            rho, previous = float(rest @ z), rho
            direction = z + (rho / previous) * direction
        return solution
