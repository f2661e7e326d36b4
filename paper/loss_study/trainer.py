r"""The one trainer: any module, any loss, cases of one size.

What is drawn at random in epoch e follows from the seed and e alone, so a training that was killed goes on from its
checkpoint to the weights it would have had: to the bit on one machine, where the module's own arithmetic allows it.

The best weights are those of the best validation Dice. For each case, that is the mean over classes of
:math:`2 TP / (2 TP + FP + FN)`, leaving out classes that are neither in the labels nor predicted, and the background
unless it counts; then the mean over cases. Voxels with the label `ignore_index` do not count.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from paper.loss_study.graph import GraphedGradients
from paper.loss_study.training import TrainConfig, Training, load_checkpoint, save_checkpoint
from segcal.errors import InputError
from segcal.numerics import winner
from segcal.types import IGNORED, Labels, Logits

# (image (channels, *space), labels (*space)) of each case, and anything after these two is left alone.
Cases: TypeAlias = Sequence[Sequence[Tensor]]
# A training in progress: each `next` takes one step, and what it returns in the end is the result.
Steps: TypeAlias = "Generator[None, None, Trained]"


@dataclass(frozen=True)
class Epoch:
    """The record of one epoch: its number from 1, the mean loss, and the Dice if it was validated."""

    number: int
    loss: float
    dice: float | None


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        network: the module, with the weights of the best epoch.
        best_dice: validation Dice of these weights, or None without validation cases.
        best_epoch: the epoch they come from; the last one without validation cases.
        history: one entry per epoch.
    """

    network: nn.Module
    best_dice: float | None
    best_epoch: int
    history: tuple[Epoch, ...]


def train(
    network: nn.Module,
    loss: nn.Module,
    cases: Cases,
    config: TrainConfig,
    validation: Cases = (),
    checkpoint: str | Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Trained:
    """Train a module in place and leave it with the weights of the best validation Dice.

    Args:
        network: maps images ``(batch, channels, *space)`` to logits ``(batch, classes, *space)``.
        loss: maps logits and labels to a scalar.
        cases: a sequence of (image, labels), all of one size; cut crops in the sequence's ``__getitem__``.
        config: the settings.
        validation: cases of any size; without them the last weights are kept.
        checkpoint: file to write after each validation and to go on from if it exists; refused if another training
            wrote it.
        on_epoch: called after each epoch, for a progress bar or a log.
    """
    steps = train_steps(network, loss, cases, config, validation, checkpoint, on_epoch)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def train_steps(
    network: nn.Module,
    loss: nn.Module,
    cases: Cases,
    config: TrainConfig,
    validation: Cases = (),
    checkpoint: str | Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Steps:
    """Train as :func:`train` does, one step with every `next`: for several trainings that take turns.

    A generator; the :class:`Trained` is the value of its ``StopIteration``. :func:`take_turns` of
    :mod:`paper.loss_study.together` runs several of them.
    """
    if not len(cases):
        raise InputError("cases is empty, but training needs at least one case. Pass pairs of image and labels.")
    _check_ignored(loss, config)
    torch.manual_seed(config.seed)
    state = _State(network.to(config.device), loss.to(config.device), config, len(cases))
    path = None if checkpoint is None else Path(checkpoint)
    training = Training(config, repr(loss), len(cases))
    if path is not None and path.exists():
        state.restore(load_checkpoint(path, training))
    while state.done < config.epochs:
        value = yield from state.run_epoch(_batches(cases, config, state.done))
        dice = None
        last = state.done == config.epochs
        if len(validation) and (last or state.done % config.validate_every == 0):
            dice = validation_dice(network, validation, config.device, config.include_background, config.ignore_index)
        state.close_epoch(Epoch(state.done, value, dice))
        if path is not None and (last or state.done % config.validate_every == 0):
            save_checkpoint(path, state.snapshot(), training)
        if on_epoch is not None:
            on_epoch(state.history[-1])
    if state.best_weights is not None:
        network.load_state_dict(state.best_weights)
    return Trained(network.eval(), state.best_dice, state.best_epoch or state.done, tuple(state.history))


def _check_ignored(loss: nn.Module, config: TrainConfig) -> None:
    """Refuse a loss that ignores another label than the validation does."""
    own = getattr(loss, "ignore_index", config.ignore_index)
    if own != config.ignore_index:
        raise InputError(
            f"the loss ignores {own}, but config.ignore_index is {config.ignore_index}. Give both the same label."
        )


class _State:
    """Everything that changes while training."""

    def __init__(self, network: nn.Module, loss: nn.Module, config: TrainConfig, num_cases: int) -> None:
        self.network, self.loss, self.config = network, loss, config
        self.optimizer = _make_optimizer(network, config)
        steps = config.epochs * max(num_cases // config.batch_size, 1)
        self.schedule = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, steps, power=0.9)
        self.half = config.amp_dtype()
        self.device_type = torch.device(config.device).type
        self.scaler = torch.amp.GradScaler(self.device_type, enabled=config.amp and self.half == torch.float16)
        self.gradients = self._recorded() if config.graph else self._gradients
        self.done = 0
        self.history: list[Epoch] = []
        self.best_dice: float | None = None
        self.best_epoch: int | None = None
        self.best_weights: dict[str, Tensor] | None = None

    def _recorded(self) -> GraphedGradients:
        if self.scaler.is_enabled():
            raise InputError(
                "graph is True with mixed precision in float16, but a recorded step cannot scale its loss. Set "
                "graph=False or amp=False."
            )
        return GraphedGradients(self.network, self.loss, self.half if self.config.amp else None)

    def run_epoch(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Generator[None, None, float]:
        self.network.train()
        losses = []
        for images, labels in batches:
            losses.append(self.gradients(images, labels))
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.config.gradient_clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            yield
        self.done += 1
        return float(torch.stack(losses).mean())

    def _gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device_type, self.half, enabled=self.config.amp):
            logits = self.network(images)
        value = self.loss(logits, labels)
        self.scaler.scale(value).backward()
        return value.detach()

    def close_epoch(self, epoch: Epoch) -> None:
        self.history.append(epoch)
        if epoch.dice is not None and (self.best_dice is None or epoch.dice > self.best_dice):
            self.best_dice, self.best_epoch = epoch.dice, epoch.number
            self.best_weights = {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def snapshot(self) -> dict[str, Any]:
        on_gpu = self.device_type == "cuda"
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": [torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None],
            "done": self.done,
            "history": [[epoch.number, epoch.loss, epoch.dice] for epoch in self.history],
            "best": [self.best_dice, self.best_epoch, self.best_weights],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"][0])
        if state["random"][1] is not None and self.device_type == "cuda":
            torch.cuda.set_rng_state(state["random"][1])
        self.done = state["done"]
        self.history = [Epoch(*row) for row in state["history"]]
        self.best_dice, self.best_epoch, self.best_weights = state["best"]


def _make_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    # On a GPU small networks wait for launches more than for arithmetic: one launch for all parameters.
    fused = torch.device(config.device).type == "cuda"
    settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "fused": fused}
    if config.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), momentum=0.99, nesterov=True, **settings)
    return torch.optim.AdamW(network.parameters(), **settings)


def _batches(cases: Cases, config: TrainConfig, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng([config.seed, epoch])
    order = rng.permutation(len(cases)).tolist()
    size = min(config.batch_size, len(cases))
    for start in range(0, len(cases) - size + 1, size):
        pairs = [_mirrored(cases[number], config.flips, rng) for number in order[start : start + size]]
        images = torch.stack([image for image, _ in pairs]).to(config.device)
        yield images, torch.stack([labels for _, labels in pairs]).to(config.device)


def _mirrored(case: Sequence[Tensor], flips: tuple[int, ...], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    image, labels = case[0], case[1]
    axes = [axis for axis in flips if rng.random() < 0.5]
    return image.flip([axis + 1 for axis in axes]), labels.flip(axes)


@torch.no_grad()
def validation_dice(
    network: nn.Module,
    cases: Iterable[Sequence[Tensor]],
    device: str,
    include_background: bool = False,
    ignore_index: int = IGNORED,
) -> float:
    """Return the mean Dice of a network over cases (image, labels), or NaN if it is defined for none."""
    training = network.training
    network.eval()
    values = [
        case_dice(network(image[None].to(device))[0], labels.to(device), include_background, ignore_index)
        for image, labels, *_ in cases
    ]
    network.train(training)
    return float(torch.stack(values).nanmean())


def case_dice(logits: Logits, labels: Labels, include_background: bool = False, ignore_index: int = IGNORED) -> Tensor:
    """Return the mean Dice of one case, logits ``(classes, *space)``; NaN if no class is there at all."""
    valid = labels != ignore_index
    strange = labels[valid & ((labels < 0) | (labels >= len(logits)))]
    if len(strange):
        raise InputError(
            f"labels contains {int(strange[0])}, but there are classes 0 to {len(logits) - 1} and ignore_index = "
            f"{ignore_index}. Set ignore_index={int(strange[0])} if this label is to be ignored."
        )
    predicted = winner(logits, axis=0)
    scores = []
    for number in range(0 if include_background else 1, len(logits)):
        mine, true = (predicted == number) & valid, (labels == number) & valid
        scores.append(2 * (mine & true).sum() / (mine.sum() + true.sum()))
    return torch.stack(scores).nanmean()
