"""How a network is trained: plain data, checked when it is made."""

from dataclasses import dataclass
from typing import Literal

import torch

from segcal.errors import InputError
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
