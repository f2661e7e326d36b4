r"""Convex calibrators: all that the exact fit knows of one, declared beside its map.

A voxel selects the expert e (its predicted class, where there is one expert for each). Its scores are linear in the
variables of e,

.. math:: s = \Phi(z)\,\theta_e, \qquad l \le \theta_e \le u ,

so the negative log-likelihood is convex in them. A calibrator declares the *features* of a voxel (:meth:`frame`), the
*bounds* l and u, and the *penalty*. Without bounds separable data have no optimum (definitions 15). The penalty has
mean squares of linear functions of the variables, averaged over experts; its limit is temperature scaling,

.. math:: R = \lambda\,|A \theta|^2 + \mu\,|B \theta|^2 + \nu\,|D (\theta - \theta_T)|^2 .

Likelihood and Hessian follow from the features. What is here takes :math:`\Phi` itself as features, ``(N, C P)``; a
calibrator with more structure says how it is used, as :mod:`segcal.calibrators.affine` does.

**Features with a large offset**: :math:`W x + b = W (x - m) + (b + W m)`. Scores of features near 1e4 are rounded to
1e-12, each voxel's in its own way. A likelihood with this noise hides the last steps to its optimum. With the centre
:math:`m` taken out of the features, what is rounded is one number per output, the same for all voxels. The variables
stay (W, b), with their bounds and penalties: only passes over the voxels see the others. With :math:`A` for :math:`(x,
1) = A\,(x - m, 1)`, gradients come back as :math:`g A^\top` and Hessians as :math:`A H A^\top`. Features are moved only
where their mean is large beside their spread; there the subtraction is exact.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from segcal.calibrators.base import SMALLEST_SCALE, Calibrator
from segcal.numerics import at_once

LARGEST = 1e3
# A mean is large from so many times the spread on, or so much.
LARGE_MEAN = 16.0
# Values in one step of a pass: bounds its memory whatever the number of voxels.
STEP_VALUES = 1 << 19


class Strengths(NamedTuple):
    """The weights of the terms of a penalty.

    Attributes:
        lam: on off-diagonal weights (Eq. 15).
        mu: on biases (Eq. 15).
        nu: on the distance of diagonal weights from temperature scaling; with all three large, that is what is left.
    """

    lam: float
    mu: float
    nu: float = 0.0


class Frame(NamedTuple):
    """Voxels in the coordinates in which a calibrator is linear.

    Attributes:
        features: ``(N, F)``.
        expert: ``(N,)``, the expert that each selects, or None if there is only one.
        order: ``(N, C)``, the class at each canonical position, or None if classes keep their order.
    """

    features: Tensor
    expert: Tensor | None = None
    order: Tensor | None = None


class Block(NamedTuple):
    """Voxels of one expert, as a pass of the exact fit sees them.

    Attributes:
        features: ``(F, n)``, without their `centre`.
        target: ``(n,)`` int32, canonical position of the label.
        weight: ``(n,)``.
        hard: ``(n,)``, one minus the confidence before calibration.
        centre: ``(F,)`` float64, what was taken out of the features; None for nothing.
    """

    features: Tensor
    target: Tensor
    weight: Tensor
    hard: Tensor
    centre: Tensor | None = None

    def take(self, index: Tensor | slice) -> "Block":
        """Return the voxels at these indices."""
        features, target, weight, hard, centre = self
        return Block(features[:, index], target[index], weight[index], hard[index], centre)

    def steps(self, values_each: int) -> Iterator["Block"]:
        """Yield parts of bounded size, given how many values a voxel has."""
        step = at_once(STEP_VALUES, values_each, self.target.device)
        for start in range(0, self.target.numel(), step):
            yield self.take(slice(start, start + step))


class Operator(NamedTuple):
    """A Hessian that is too large for a matrix.

    Attributes:
        multiply: v -> H v, ``(P,)``.
        blocks: returns ``(K, Q, Q)``, the squares along its diagonal; beyond K Q it is zero.
    """

    multiply: Callable[[Tensor], Tensor]
    blocks: Callable[[], Tensor]


class ConvexCalibrator(Calibrator):
    """A calibrator whose scores are linear in its parameters.

    Attributes:
        variables: the parameters that are fitted, in the order of theta; a leading axis for experts, if there are some.
        num_experts: E; 1 if all voxels share one map.
        centred: features with a large offset may be moved (:attr:`Block.centre`).
        first_sample: voxels of an expert behind its first Hessian; None for as many as its cost allows.
        by_products: whether :meth:`operator` is there.
        biased: `mu` weighs biases, which are what the frequencies of classes alone decide.
        guarded: of the strengths of its penalty, those are left out at which ECE or BA-ECE of held-out cases are higher
            than those of temperature scaling.
        steepens: what belongs to a class is a slope that is added to that of all.
    """

    fitted_by = "convex"
    variables: tuple[str, ...]
    num_experts: int = 1
    centred = False
    first_sample: int | None = None
    by_products = False
    biased = False
    guarded = False
    steepens = False

    @property
    def num_features(self) -> int:
        """The approximate number of values in the frame of a voxel."""
        return self.num_classes

    def prepare(self, voxels: Iterable[tuple[Tensor, Tensor | None]]) -> None:
        """Look at the voxels of a fit, logits ``(C, n)`` and contexts ``(K, n)``, before it starts; for knots."""

    @abstractmethod
    def frame(self, logits: Tensor, context: Tensor | None = None) -> Frame:
        """Bring logits ``(N, C)`` into the coordinates in which this calibrator is linear.

        `context` is ``(K, N)``: what is known of the voxels' neighbourhood, for a calibrator that sees them.
        """

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest value of each of one expert's variables, ``(P,)``; wide ones by default."""
        lows = [SMALLEST_SCALE if name in self.positives else -LARGEST for name in self.variables]
        low = torch.tensor(lows, dtype=torch.float64).repeat_interleave(torch.tensor(self._sizes()))
        return low, torch.full_like(low, LARGEST)

    def penalised(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the penalty squares, linear in ``(..., P)``: the vectors behind lam, mu and nu; or nothing.

        All else that is asked of a penalty follows from it.
        """
        return theta[..., :0], theta[..., :0], theta[..., :0]

    @property
    def has_penalty(self) -> tuple[bool, bool]:  # type: ignore[override]
        """Whether lam and mu weigh anything."""
        first, second, _ = self.penalised(self.theta()[:1].detach())
        return first.numel() > 0, second.numel() > 0

    def concerns(self) -> Tensor | None:
        """Return the winner and the label whose voxels each variable speaks of, ``(E, P, 2)``, -1 for any.

        None where all speak of all voxels.
        """
        return None

    def penalty(self, lam: float, mu: float) -> Tensor:
        """Return the penalty with these strengths, averaged over experts, differentiable."""
        first, second, _ = self.penalised(self.theta())
        return (lam * first.square().sum(-1) + mu * second.square().sum(-1)).mean()

    def squares(self) -> list[Tensor]:
        """Return Q ``(P, P)`` of each of the squares ``theta Q theta``: for lam, mu and nu."""
        unit = torch.eye(self.theta().shape[1], dtype=torch.float64)
        return [rows @ rows.T for rows in self.penalised(unit)]

    def anchor(self, inverse_temperature: float) -> Tensor:
        """Return one expert's variables ``(P,)`` where the penalty is zero: temperature scaling."""
        new = type(self)(self.num_classes, **self.options)
        return inverse_temperature * new.theta()[0].detach()

    def theta(self) -> Tensor:
        """Return the variables as ``(E, P)``, differentiable."""
        return torch.cat([getattr(self, name).reshape(self.num_experts, -1) for name in self.variables], dim=1)

    @torch.no_grad()
    def set_theta(self, theta: Tensor) -> None:
        """Set the parameters from ``(E, P)``."""
        for name, value in zip(self.variables, theta.split(self._sizes(), dim=1), strict=True):
            getattr(self, name).copy_(value.reshape(getattr(self, name).shape))

    def variable_names(self) -> list[str]:
        """Return the names of one expert's variables."""
        sizes = zip(self.variables, self._sizes(), strict=True)
        return [name if getattr(self, name).ndim == 0 else f"{name}[{i}]" for name, size in sizes for i in range(size)]

    def _sizes(self) -> list[int]:
        """Return how many variables of one expert each parameter has."""
        return [getattr(self, name).numel() // self.num_experts for name in self.variables]

    def likelihood(self, block: Block, theta: Tensor) -> tuple[float, Tensor]:
        """Return the summed NLL of a block at one expert's ``(P,)``, and its gradient ``(P,)``."""
        value, gradient = 0.0, torch.zeros_like(theta)
        for part in block.steps(self.num_classes * len(theta)):
            design = self._design(part)
            log_probs = torch.einsum("kpn,p->kn", design, theta.to(design.device)).log_softmax(0)
            weight, target = part.weight.double(), part.target.long()[None]
            value -= float((weight * log_probs.gather(0, target)[0]).sum())
            residual = log_probs.exp().scatter_add(0, target, -torch.ones_like(log_probs[:1])) * weight
            gradient += torch.einsum("kpn,kn->p", design, residual).cpu()
        return value, gradient

    def hessian(self, block: Block, theta: Tensor, total: float) -> Tensor:
        """Return the Hessian ``(P, P)`` of the summed NLL of a block at one expert's ``(P,)``, divided by `total`."""
        hessian = torch.zeros(len(theta), len(theta), dtype=torch.float64)
        for part in block.steps(self.num_classes * len(theta)):
            design = self._design(part)
            probs = torch.einsum("kpn,p->kn", design, theta.to(design.device)).softmax(0)
            mean = torch.einsum("kpn,kn->pn", design, probs)
            rest = (design - mean) * (probs * part.weight.double()).sqrt()[:, None]
            flat = rest.movedim(1, 0).reshape(len(theta), -1)
            hessian += (flat @ flat.T).cpu()
        return hessian / total

    def operator(self, block: Block, theta: Tensor, total: float) -> Operator:
        """Return the same Hessian by its products, for variables too many for a matrix; where `by_products`."""
        raise NotImplementedError(f"{self.name} has no products")

    def penalty_diagonal(self, strengths: Strengths) -> Tensor:
        """Return about what the penalty adds to the diagonal of one of the blocks of :class:`Operator`."""
        raise NotImplementedError(f"{self.name} has no products")

    def _design(self, block: Block) -> Tensor:
        return block.features.double().reshape(self.num_classes, -1, block.target.numel())


def find_centre(weight: float, sums: Tensor, squares: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the centre ``(F,)`` of features with these weighted sums and sums of squares; None where none is large.

    It is float64, but its numbers are of the features' own type.
    """
    mean = sums / weight
    spread = (squares / weight - mean.square()).clamp(min=0).sqrt()
    large = mean.abs() > LARGE_MEAN * spread.clamp(min=1.0)
    return torch.where(large, mean.to(dtype).double(), 0.0) if bool(large.any()) else None


def take_out(features: Tensor, centre: Tensor | None) -> Tensor:
    """Return features ``(F, n)`` about the centre, in their own type."""
    if centre is None:
        return features
    return (features.double() - centre.to(features.device)[:, None]).to(features.dtype)


def inward(theta: Tensor, centre: Tensor | None) -> Tensor:
    """Return ``(W, b + W m)`` of ``(K, F + 1)``."""
    if centre is None:
        return theta
    moved = theta.clone()
    moved[:, -1] += theta[:, :-1] @ centre.to(theta.device)
    return moved


def outward(gradient: Tensor, centre: Tensor | None) -> Tensor:
    """Return the gradient ``(..., F + 1)`` in (W, b) of one in the moved variables."""
    if centre is None:
        return gradient
    centre = centre.to(gradient.device)
    return torch.cat([gradient[..., :-1] + gradient[..., -1:] * centre, gradient[..., -1:]], dim=-1)
