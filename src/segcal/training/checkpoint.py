"""The state of a training on disk: complete or absent; read without running any code it holds."""

import io
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from segcal.atomic import write_bytes
from segcal.errors import ArtifactError, InputError
from segcal.training.config import TrainConfig

VERSION = 2
# A training may go on on another device; anything else, the number of epochs too, would be another training.
MAY_CHANGE = ("device", "graph")


@dataclass(frozen=True)
class Training:
    """What a training is: another one cannot go on from its checkpoint.

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
