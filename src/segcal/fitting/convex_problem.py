"""What the exact fit needs to know about a convex calibrator, beyond what the solver does."""

from abc import abstractmethod

import torch
from torch import Tensor

from segcal.fitting.newton import BlockProblem


class ConvexProblem(BlockProblem):
    """The objective of one calibrator on given voxels, with one block of variables an expert.

    Attributes:
        num_blocks: E.
        blocks: the experts that have voxels; the others keep their parameters.
        names: the name of each of the P variables.
        strengths: whether the penalty depends on (lam, mu).
        block_weights: ``(E,)`` share of the voxels that each expert has.
        large: whether the Hessian of a block does not fit; it is then a :class:`ProductProblem`.
    """

    num_blocks: int
    blocks: list[int]
    names: list[str]
    strengths: tuple[bool, bool]
    block_weights: Tensor
    large = False

    @abstractmethod
    def start(self) -> Tensor:
        """Return the calibrator's own parameters as ``(E, P)``."""

    @abstractmethod
    def coarse(self) -> "ConvexProblem | None":
        """Return the same objective on few voxels, for a first approach; None where few would mislead it."""

    @abstractmethod
    def write(self, theta: Tensor) -> None:
        """Set the calibrator's parameters from ``(E, P)``."""

    @abstractmethod
    def set_strengths(self, lam: float, mu: float) -> None:
        """Choose the strengths of the penalty."""

    @abstractmethod
    def penalty_product(self, theta: Tensor) -> Tensor:
        """Return the gradient of one block's penalty at ``theta`` ``(P,)``; the penalty is half of theta times it."""

    def likelihood(self, theta: Tensor) -> Tensor:
        """Return each block's part of the mean NLL, ``(E,)``, in one pass."""
        values, _ = self.evaluate(theta, self.blocks)
        return values - self.penalties(theta)

    def penalties(self, theta: Tensor) -> Tensor:
        """Return each block's penalty ``(E,)``; zero for blocks without voxels."""
        penalties = torch.zeros(len(theta), dtype=torch.float64)
        for block in self.blocks:
            penalties[block] = 0.5 * float(theta[block] @ self.penalty_product(theta[block]))
        return penalties
