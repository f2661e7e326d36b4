"""What the exact fit needs to know about a convex calibrator, beyond what the solver does."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from segcal.fitting.newton import BlockProblem


class Strengths(NamedTuple):
    """How strong the parts of a penalty are.

    Attributes:
        lam: on off-diagonal weights (Eq. 15).
        mu: on biases (Eq. 15).
        nu: on the distance of diagonal weights from temperature scaling; with all three large, that is what is left.
    """

    lam: float
    mu: float
    nu: float = 0.0


class ConvexProblem(BlockProblem):
    """The objective of one calibrator on given voxels, with one block of variables an expert.

    Attributes:
        num_blocks: E.
        blocks: the experts that have voxels; the others keep their parameters.
        names: the name of each of the P variables.
        block_weights: ``(E,)`` share of the voxels that each expert has.
        anchor: ``(P,)``, where the penalty of a block is zero.
        large: whether the Hessian of a block does not fit; it is then a :class:`ProductProblem`.
    """

    num_blocks: int
    blocks: list[int]
    names: list[str]
    block_weights: Tensor
    anchor: Tensor
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
    def set_strengths(self, strengths: Strengths, inverse_temperature: float = 1.0) -> None:
        """Choose the strengths of the penalty, and the temperature that `nu` draws to."""

    @abstractmethod
    def penalty_product(self, change: Tensor) -> Tensor:
        """Return the product of the (constant) Hessian of one block's penalty with ``change`` ``(P,)``."""

    def penalty(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalty of one block at ``theta`` ``(P,)`` and its gradient."""
        change = theta - self.anchor
        push = self.penalty_product(change)
        return 0.5 * float(change @ push), push

    def likelihood(self, theta: Tensor) -> Tensor:
        """Return each block's part of the mean NLL, ``(E,)``, in one pass."""
        values, _ = self.evaluate(theta, self.blocks)
        return values - self.penalties(theta)

    def penalties(self, theta: Tensor) -> Tensor:
        """Return each block's penalty ``(E,)``; zero for blocks without voxels."""
        penalties = torch.zeros(len(theta), dtype=torch.float64)
        for block in self.blocks:
            penalties[block] = self.penalty(theta[block])[0]
        return penalties
