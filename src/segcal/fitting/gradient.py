r"""Training by gradient: Adam, a plateau schedule and early stopping, as in the paper (App. B).

:func:`train` knows nothing about calibrators: it lowers a loss by its gradient, watches a validation loss and keeps
the best parameters. One step is one call of the loss; the validation loss is read after every step, and patience
counts these readings. The paper leaves the schedule open; here the learning rate is halved after half the patience
without improvement, so that it falls before training stops, and any decrease counts as improvement.

Parameters that must stay positive are trained through :math:`\theta = \log(1 + e^u)` (softplus), weights of a mixture
through a softmax. Neither ever gives zero: where the identity has a zero, training starts at a small eps instead, and
the start is the identity to within 1e-2. A smaller eps would be closer, but its gradient is about eps, too: the
parameter would hardly move.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from segcal.calibrators.affine import SMALLEST_SCALE
from segcal.calibrators.base import Calibrator
from segcal.calibrators.conditional_affine import ConditionalAffine
from segcal.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling

# The default of 1e-8 would be of the size of the gradients behind a softplus near zero.
ADAM_EPS = 1e-12
LEARNING_RATE_FACTOR = 0.5
SMALLEST_MIXTURE_WEIGHT = 1e-3


@dataclass(frozen=True)
class TrainOptions:
    """How to train.

    Attributes:
        learning_rate: of Adam, at first.
        patience: stop after so many readings of the validation loss without a new best.
        max_steps: stop after so many steps in any case.
    """

    learning_rate: float
    patience: int
    max_steps: int


@dataclass(frozen=True)
class Training:
    """What came of it.

    Attributes:
        best: lowest validation loss; the parameters are those that gave it.
        curve: validation loss at the start and after every step.
        ran_out_of_patience: whether it stopped of itself, before `max_steps`.
    """

    best: float
    curve: tuple[float, ...]
    ran_out_of_patience: bool

    @property
    def steps(self) -> int:
        """Return how many steps were made."""
        return len(self.curve) - 1


def train(
    parameters: Sequence[nn.Parameter],
    loss: Callable[[], Tensor],
    validate: Callable[[], float],
    options: TrainOptions,
) -> Training:
    """Train `parameters` in place and leave them in their best state.

    Args:
        parameters: what Adam changes.
        loss: returns the loss at the current parameters, differentiable in them.
        validate: returns the validation loss at the current parameters.
        options: how.
    """
    adam = torch.optim.Adam(parameters, lr=options.learning_rate, eps=ADAM_EPS)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        adam, factor=LEARNING_RATE_FACTOR, patience=options.patience // 2, threshold=0.0
    )
    best, best_step, kept = validate(), 0, _copies(parameters)
    curve = [best]
    for step in range(1, options.max_steps + 1):
        adam.zero_grad()
        loss().backward()
        adam.step()
        value = validate()
        schedule.step(value)
        curve.append(value)
        if value < best:
            best, best_step, kept = value, step, _copies(parameters)
        elif step - best_step >= options.patience:
            break
    with torch.no_grad():
        for parameter, copied in zip(parameters, kept, strict=True):
            parameter.copy_(copied)
    return Training(best, tuple(curve), ran_out_of_patience=len(curve) - 1 - best_step >= options.patience)


def trainable(calibrator: Calibrator) -> Calibrator:
    """Return a copy whose parameters can take any value: bounded ones are computed from free ones.

    The copy reads and works like a calibrator; its :meth:`parameters` are the free ones.
    """
    free = copy.deepcopy(calibrator)
    for name, rule in _rules(calibrator).items():
        parametrize.register_parametrization(free, name, rule)
    return free


class Softplus(nn.Module):
    """Positive numbers from free ones.

    Args:
        smallest: where a smaller number starts.
    """

    def __init__(self, smallest: float) -> None:
        super().__init__()
        self._smallest = smallest

    def forward(self, free: Tensor) -> Tensor:
        """Return log(1 + e^u)."""
        return nn.functional.softplus(free)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return u with log(1 + e^u) = value."""
        value = value.clamp(min=self._smallest)
        return value + torch.log(-torch.expm1(-value))


class Softmax(nn.Module):
    """Weights of a mixture from free numbers."""

    def forward(self, free: Tensor) -> Tensor:
        """Return the softmax."""
        return torch.softmax(free, dim=-1)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return u with softmax(u) = value, where no weight is too small."""
        return value.clamp(min=SMALLEST_MIXTURE_WEIGHT).log()


def _rules(calibrator: Calibrator) -> dict[str, nn.Module]:
    """Return what becomes of each bounded parameter; wide bounds that only make an optimum exist are left out."""
    if isinstance(calibrator, TemperatureScaling):
        return {"inverse_temperature": Softplus(SMALLEST_SCALE)}
    if isinstance(calibrator, EnsembleTemperatureScaling):
        return {"inverse_temperature": Softplus(SMALLEST_SCALE), "mixture": Softmax()}
    if isinstance(calibrator, VectorScaling):
        return {"scale": Softplus(SMALLEST_SCALE)}
    if isinstance(calibrator, ConditionalAffine):
        eps = 1e-3 if calibrator.num_classes <= 5 else 1e-4  # the error at the start grows with the classes
        return {"weight": Softplus(eps), "bias": Softplus(eps)}
    return {}


def _copies(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]
