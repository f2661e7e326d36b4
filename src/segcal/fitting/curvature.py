"""A Hessian as a matrix; where it does not fit, see :mod:`segcal.fitting.trust_region`."""

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
