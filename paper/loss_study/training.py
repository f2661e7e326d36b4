"""The settings of a training, checked when they are made, and its state on disk: complete or absent, and no code."""

import io
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from segcal.atomic import write_bytes
from segcal.errors import ArtifactError, InputError
from segcal.types import IGNORED


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one training.

    Attributes:
        epochs: passes over the training data.
        batch_size: cases in a step; the last, smaller batch of an epoch is left out unless it is the only one.
        optimizer: "adam" (AdamW) or "sgd" (Nesterov momentum 0.99 over a polynomial schedule, the nnU-Net way).
        learning_rate: at the start; it falls to zero over the training as ``(1 - step / steps) ** 0.9``.
        weight_decay: of the optimizer.
        gradient_clip: largest norm of the gradient.
        flips: axes of space (0 is the first) along which a case is mirrored at random.
        seed: of the order of cases, the flips and whatever the module itself draws.
        device: where to train.
        amp: mixed precision: bfloat16 where the device has it, else float16 with loss scaling.
        graph: record a step once and replay it, on a CUDA device: small networks train faster. Not with float16.
        validate_every: epochs between two validations; the last epoch is always validated.
        include_background: whether class 0 enters the validation Dice.
        ignore_index: the label of voxels that do not count, as in the loss.
    """

    epochs: int = 50
    batch_size: int = 4
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    gradient_clip: float = 10.0
    flips: tuple[int, ...] = ()
    seed: int = 0
    device: str = "cpu"
    amp: bool = False
    graph: bool = False
    validate_every: int = 5
    include_background: bool = False
    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but at least 1 is needed. Choose a positive whole number."
                )
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, but more than 0 is needed. The default is a start.")
        _check_device(self.device)
        if self.graph and torch.device(self.device).type != "cuda":
            raise InputError(
                f"graph is True with device {self.device!r}, but graphs are recorded on a CUDA device. Set graph=False."
            )
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}, but at least 0 is needed. Choose another whole number.")
        if self.optimizer not in ("adam", "sgd"):
            raise InputError(f"optimizer is {self.optimizer!r}, but adam or sgd is needed. Choose one of these.")

    def amp_dtype(self) -> torch.dtype:
        """Return the half type of mixed precision on this device."""
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_bf16_supported():
            return torch.float16
        return torch.bfloat16


def _check_device(device: str) -> None:
    try:
        torch.device(device)
    except RuntimeError:
        raise InputError(f"device is {device!r}, but a device of torch is needed. Use 'cpu' or 'cuda'.") from None


VERSION = 2
# A training may go on on another device; anything else, the number of epochs too, would be another training.
MAY_CHANGE = ("device", "graph")


@dataclass(frozen=True)
class Training:
    """The identity of a training: another one cannot go on from its checkpoint.

    Attributes:
        config: its settings.
        loss: the loss with its options, as it is printed.
        cases: how many it trains on.
    """

    config: TrainConfig
    loss: str
    cases: int

    def plain(self) -> dict[str, Any]:
        """Return everything as plain data."""
        facts = asdict(self.config) | {"loss": self.loss, "cases": self.cases}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


def save_checkpoint(path: Path, state: Mapping[str, Any], training: Training) -> None:
    """Write a state so that a kill at any moment leaves the old file or the new one."""
    content = io.BytesIO()  # a full disk would be an error without a name inside torch
    torch.save({"version": VERSION, "training": training.plain(), **state}, content)
    write_bytes(path, content.getbuffer())


def load_checkpoint(path: Path, training: Training) -> dict[str, Any]:
    """Read a state, and refuse one that another training wrote."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = type(error).__name__ if isinstance(error, pickle.UnpicklingError) else error
        raise ArtifactError(f"{path} is not readable as a checkpoint ({reason}). Delete it to start again.") from None
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise ArtifactError(f"{path} is not a checkpoint of version {VERSION}. Delete it to start again.")
    written, wanted = state["training"], training.plain()
    for name, value in wanted.items():
        if name not in MAY_CHANGE and written.get(name) != value:
            raise InputError(
                f"{path} was written with {name} = {written.get(name)!r}, but the training now has {value!r}. "
                "Use the same settings, or another checkpoint file."
            )
    return state
