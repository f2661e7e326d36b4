r"""Training by gradient: Adam, a plateau schedule and early stopping, as in the paper (App. B).

:func:`train_rounds` knows nothing about calibrators. It lowers losses by their gradient, round by round. After each
round it reads a validation loss, and it keeps the best parameters. A round is one step on all data or one step for
every batch of them. Patience counts readings. The paper leaves the schedule open. Here the learning rate is halved
after half the patience without improvement, so that it falls before training stops, and any decrease counts as
improvement. Weight decay is the L2 penalty :math:`\frac\alpha2 \sum w^2` on weights; biases are free. Steps on batches
are noisy: what is validated and kept can be a running average of the parameters (Polyak).

Parameters that must stay positive are trained through :math:`\theta = \log(1 + e^u)` (softplus), weights of a mixture
through a softmax. Neither ever gives zero. Where the identity has a zero, training starts at a small eps instead, and
the start is the identity to within 1e-2. A smaller eps would be closer, but its gradient is about eps, too: the
parameter would hardly move.
"""

import copy
import hashlib
import io
import json
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from segcal.atomic import write_bytes
from segcal.calibrators.base import Calibrator
from segcal.errors import ArtifactError, InputError

# The default of 1e-8 would be of the size of the gradients behind a softplus near zero.
ADAM_EPS = 1e-12
BETAS = 0.9, 0.999
VERSION = 2  # of the files that hold a state
LEARNING_RATE_FACTOR = 0.5
SMALLEST_MIXTURE_WEIGHT = 1e-3


@dataclass(frozen=True)
class TrainOptions:
    """Settings of a training.

    Attributes:
        learning_rate: of Adam, at first.
        patience: stop after so many readings of the validation loss without a new best.
        max_steps: stop after so many rounds in any case; a round of the paper's procedure is one step.
        weight_decay: the alpha of the penalty on weights.
        average: what the running average keeps of itself at every step, at first less; 0 for no average.
    """

    learning_rate: float
    patience: int
    max_steps: int
    weight_decay: float = 0.0
    average: float = 0.0


@dataclass(frozen=True)
class Training:
    """The lowest validation loss, its curve from the start on, and whether training stopped before `max_steps`."""

    best: float
    curve: tuple[float, ...]
    ran_out_of_patience: bool

    @property
    def steps(self) -> int:
        """Return how many rounds were made."""
        return len(self.curve) - 1


@dataclass
class AdamState:
    """Moments of the gradients, the learning rate, the lowest loss, and how many readings in a row were not lower."""

    first: list[Tensor]
    second: list[Tensor]
    rate: float
    best: float = math.inf
    waited: int = 0


class TrainingState(TypedDict):
    """The state of a training after a round: parameters now, their mean, the best ones, and how it came there."""

    parameters: list[Tensor]
    mean: list[Tensor]
    kept: list[Tensor]
    adam: Any  # the fields of AdamState
    curve: list[float]
    steps: int


class Adam:
    """Adam with a learning rate that falls on a plateau, as `torch.optim` has both.

    The first use of that package imports the compiler of torch, which takes a second: longer than many a training here.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], options: TrainOptions) -> None:
        self._parameters, self._options = parameters, options
        first, second = ([torch.zeros_like(p, requires_grad=False) for p in parameters] for _ in range(2))
        self.state = AdamState(first, second, options.learning_rate)

    @torch.no_grad()
    def step(self, number: int) -> None:
        """Make the step of this number, from 1, along the gradients."""
        state, (keep, keep_square) = self.state, BETAS
        length, root = state.rate / (1 - keep**number), (1 - keep_square**number) ** 0.5
        for parameter, first, second in zip(self._parameters, state.first, state.second, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self._options.weight_decay and parameter.ndim > 1:
                gradient = gradient.add(parameter, alpha=self._options.weight_decay)
            first.lerp_(gradient, 1 - keep)
            second.mul_(keep_square).addcmul_(gradient, gradient, value=1 - keep_square)
            parameter.addcdiv_(first, (second.sqrt() / root).add_(ADAM_EPS), value=-length)

    def look(self, loss: float) -> None:
        """Take a reading of the validation loss: halve the learning rate after too many without a new best."""
        state = self.state
        state.best, state.waited = (loss, 0) if loss < state.best else (state.best, state.waited + 1)
        if state.waited > self._options.patience // 2:
            state.rate, state.waited = LEARNING_RATE_FACTOR * state.rate, 0


class FileKeeper:
    """Keeps the state of one training in one file: complete or absent; read without running any code it holds.

    Args:
        path: the file; its folder is made when there is something to write.
        identity: plain data that decides the training; a state of another training is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        self._path = path
        self._identity = {name: _digest(value) for name, value in identity.items()}

    def save(self, state: Mapping[str, object]) -> None:
        """Write a state so that a kill at any moment leaves the old file or the new one."""
        content = io.BytesIO()  # a full disk would be an error without a name inside torch
        torch.save({"version": VERSION, "identity": self._identity, **state}, content)
        write_bytes(self._path, content.getbuffer())

    def load(self) -> TrainingState | None:
        """Return the state that was written last; None if there is none."""
        if not self._path.exists():
            return None
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
            raise ArtifactError(
                f"{self._path} is not readable as a checkpoint ({error}), but it must be as segcal wrote it. "
                "Delete it to start again."
            ) from None
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise ArtifactError(
                f"{self._path} is no checkpoint of version {VERSION}, but the fit needs one. Delete it to start again."
            )
        for name, digest in self._identity.items():
            if state["identity"].get(name) != digest:
                raise InputError(
                    f"{self._path} belongs to a fit with another {name}, but the fit goes on only with the same. "
                    "Name another checkpoint folder, or delete this one."
                )
        return cast(TrainingState, state)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def train_rounds(
    parameters: Sequence[nn.Parameter],
    losses: Callable[[int], Iterable[Tensor]],
    validate: Callable[[], float],
    options: TrainOptions,
    keeper: FileKeeper | None = None,
    report: Callable[[int, float], None] = lambda number, value: None,
) -> Training:
    """Train `parameters` in place, and leave them in their best state.

    Args:
        parameters: what Adam changes.
        losses: given the number of the round, yields its losses; each is asked for after the step on the one before.
        validate: returns the validation loss at the current parameters.
        options: how.
        keeper: where the state is kept after every round; a training that finds a state there goes on from it.
        report: takes the number of a round and its validation loss.
    """
    adam = Adam(parameters, options)
    mean, kept, curve, steps = _resume(None if keeper is None else keeper.load(), parameters, adam)
    if not curve:
        curve.append(validate())
    best_round = curve.index(min(curve))
    while len(curve) <= options.max_steps and len(curve) - 1 - best_round < options.patience:
        number = len(curve)
        for loss in losses(number):
            for parameter in parameters:
                parameter.grad = None
            loss.backward()
            steps += 1
            adam.step(steps)
            for average, parameter in zip(mean, parameters, strict=True):
                average.lerp_(parameter.detach(), 1 - min(options.average, steps / (steps + 9)))
        current = _copies(parameters)
        _set(parameters, mean)
        curve.append(validate())
        adam.look(curve[-1])
        if curve[-1] < curve[best_round]:
            best_round, kept = number, _copies(parameters)
        _set(parameters, current)
        report(number, curve[-1])
        if keeper is not None:
            tensors = {"parameters": current, "mean": mean, "kept": kept}
            keeper.save({**tensors, "adam": vars(adam.state), "curve": curve, "steps": steps})
    _set(parameters, kept)
    return Training(
        curve[best_round], tuple(curve), ran_out_of_patience=len(curve) - 1 - best_round >= options.patience
    )


def _resume(
    state: TrainingState | None, parameters: Sequence[nn.Parameter], adam: "Adam"
) -> tuple[list[Tensor], list[Tensor], list[float], int]:
    """Return the average, the best parameters, the curve and the steps so far, and set the rest, as a state has it."""
    if state is None:
        return _copies(parameters), _copies(parameters), [], 0
    _set(parameters, state["parameters"])
    found = AdamState(**state["adam"])
    first, second, mean, kept = (
        [x.to(parameters[0].device) for x in own] for own in (found.first, found.second, state["mean"], state["kept"])
    )
    adam.state = replace(found, first=first, second=second)
    return mean, kept, list(state["curve"]), state["steps"]


def trainable(calibrator: Calibrator) -> Calibrator:
    """Return a copy whose parameters can take any value: bounded ones are computed from free ones.

    The copy reads and works like a calibrator; its :meth:`parameters` are the free ones. Wide bounds that only make an
    optimum exist are left out.
    """
    free = copy.deepcopy(calibrator)
    rules: dict[str, nn.Module] = {name: Softplus(smallest) for name, smallest in calibrator.positive().items()}
    for name, rule in (rules | {name: Softmax() for name in calibrator.mixtures}).items():
        parametrize.register_parametrization(free, name, rule)
    return free


class Softplus(nn.Module):
    """Positive numbers from free ones; what is smaller than `smallest` starts there."""

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


@torch.no_grad()
def _set(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _copies(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]
