"""The study of losses on real data: every loss with and without a Dice term, two sizes of networks, several seeds.

    python -m paper.loss_study real ROOT --out DIR --device cuda --trainers 4 --at-once 4 --measurers 11

One JSON file per network: its Dice, NLL, ECE and BA-ECE of every test case, as trained and after calibration, which is
fitted to other patients or frames. :mod:`paper.loss_study.real_run` runs it, in one process or many, until all is
there or the time is over; :mod:`paper.loss_study.real_rows` writes the rows of the board.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from paper.loss_study import real_data
from paper.loss_study.measure import NONE, fit_post_hoc, rounded
from paper.loss_study.plan import MAIN, VARIANTS
from paper.loss_study.real_data import find_parts, pictures, read_case
from paper.loss_study.trainer import Steps, train_steps
from paper.loss_study.training import TrainConfig
from segcal.cases import ArrayCases
from segcal.demo.unet import UNet
from segcal.evaluation.case_counter import Counter
from segcal.losses import Dice, make_loss
from segcal.metrics import METRICS, Metric
from segcal.types import IGNORED

WITH_DICE = "_dice"
OWN_DICE = ("ce_dice", "ml1_ace", "ml1_ace_soft")
# What the question is about comes first: the two that most people train with, and the neighbour-aware losses.
CORE = ("ce", "ce_dice", "nacl", "nacl_dice", "svls", "svls_dice")
# Every loss of the main table, those with a calibration term, and each of those without a Dice term with one.
LOSSES = tuple(
    dict.fromkeys([*CORE, *(n for name in MAIN if name not in CORE for n in (name, f"{name}{WITH_DICE}")), *OWN_DICE])
)
SIZES: dict[str, tuple[int, ...]] = {"small": (16, 32, 64, 128), "large": (32, 64, 128, 256, 320)}
BATCH = 8
POST_HOC = ("ts", "conic")
SHOWN = {"dice": "Dice", "nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE"}


class RealUnit(Struct, frozen=True):
    """One network."""

    task: str
    loss: str
    size: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.task}-{self.loss}-{self.size}-{self.seed}"


class RealRow(Struct, frozen=True):
    """What was measured of a network.

    Attributes:
        unit: the network.
        steps: of its training.
        groups: the patient or the block of frames of each test case, by number.
        values: numbers per test case, by pipeline ("none": as trained) and metric.
        failed: calibrators that could not be fitted, and why.
    """

    unit: RealUnit
    steps: int
    groups: tuple[int, ...]
    values: dict[str, dict[str, list[float | None]]]
    failed: dict[str, str]


class PlusDice(nn.Module):
    """A loss plus the Dice loss, with one ignored label."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.dice, self.ignore_index = loss, Dice(), IGNORED

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum."""
        return self.loss(logits, labels) + self.dice(logits, labels)


@dataclass
class RealStudy:
    """What trains and measures; cases are read once.

    Attributes:
        root: the folder of the real data.
        device: where to train and predict.
        steps: of a training, as far as whole passes over the cases allow.
        most: at most so many cases of each part, to try it out; None for all.
    """

    root: Path
    device: str = "cpu"
    steps: int = 1000
    most: int | None = None
    _read: dict[tuple[str, str], list[tuple[str, np.ndarray, np.ndarray]]] = field(default_factory=dict, repr=False)
    _pictures: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict, repr=False)

    def part(self, task: str, part: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return name, image and labels of the cases of a part."""
        if (task, part) not in self._read:
            cases = find_parts(self.root, task)[part][: self.most]
            self._read[task, part] = [(case.id, *read_case(task, case)) for case in cases]
        return self._read[task, part]

    def network(self, unit: RealUnit) -> nn.Module:
        """Return an untrained network."""
        task = real_data.TASKS[unit.task]
        torch.manual_seed(unit.seed)
        network = UNet(channels=task.channels, num_classes=task.num_classes, widths=SIZES[unit.size])
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train(self, unit: RealUnit, graph: bool = False) -> Steps:
        """Train one network step by step; its last weights are kept."""
        cases = self.pictures(unit.task)
        on_gpu = torch.device(self.device).type == "cuda"
        config = TrainConfig(
            epochs=self.epochs(unit.task),
            batch_size=BATCH,
            flips=real_data.TASKS[unit.task].flips,
            seed=unit.seed,
            device=self.device,
            amp=on_gpu,
            graph=graph and on_gpu,
        )
        return (yield from train_steps(self.network(unit), loss_of(unit.loss), cases, config))

    def epochs(self, task: str) -> int:
        """Return the passes over the cases that have the wanted steps."""
        return max(math.ceil(self.steps / self._in_a_pass(task)), 1)

    def _in_a_pass(self, task: str) -> int:
        return max(len(self.pictures(task)) // BATCH, 1)

    def pictures(self, task: str) -> list[tuple[Tensor, Tensor]]:
        """Return the pictures of training, on the device."""
        if task not in self._pictures:
            found = [pair for _, image, labels in self.part(task, "train") for pair in pictures(image, labels)]
            self._pictures[task] = [
                (torch.from_numpy(image.copy()).to(self.device), torch.from_numpy(labels.copy()).to(self.device))
                for image, labels in found
            ]
        return self._pictures[task]

    def measure(self, unit: RealUnit, network: nn.Module) -> RealRow:
        """Measure one network as trained and after each calibrator."""
        task = real_data.TASKS[unit.task]
        cal, val, test = (self._cases(unit.task, part, network) for part in ("cal", "val", "test"))
        calibrators, facts = fit_post_hoc(cal, val, POST_HOC)
        metrics: dict[str, Metric] = {name: METRICS[name] for name in SHOWN}
        metrics["dice"] = METRICS["dice"].with_options(include_background=not task.background)
        counter = Counter(metrics)
        values: dict[str, dict[str, list[float | None]]] = {}
        for case in test:
            before, after = counter.count_each(case, calibrators)
            for name, counted in {NONE: before, **after}.items():
                for key, metric in metrics.items():
                    values.setdefault(name, {}).setdefault(key, []).append(rounded(metric(counted.tables)))
        failed = {name: fact["error"] for name, fact in facts.items() if "error" in fact}
        steps = self.epochs(unit.task) * self._in_a_pass(unit.task)
        return RealRow(unit, steps, tuple(real_data.groups(unit.task, test.ids)), values, failed)

    @torch.no_grad()
    def _cases(self, task: str, part: str, network: nn.Module) -> ArrayCases:
        network.to(self.device).eval()
        stored = self.part(task, part)
        logits = []
        for _, image, labels in stored:
            planes = torch.from_numpy(image[None] if labels.ndim == 2 else image.swapaxes(0, 1).copy())
            found = network(planes.to(self.device)).float().cpu()
            logits.append(found[0] if labels.ndim == 2 else found.movedim(0, 1).contiguous())
        truths = [labels for _, _, labels in stored]
        return ArrayCases(logits=logits, labels=truths, ids=[name for name, _, _ in stored], ignore=IGNORED)


def loss_of(name: str) -> nn.Module:
    """Return a loss of :data:`LOSSES`."""
    if name in VARIANTS:
        kind, options = VARIANTS[name]
        return make_loss(kind, **options)
    if name in OWN_DICE:
        return make_loss(name)
    return PlusDice(loss_of(name.removesuffix(WITH_DICE)))


def plan_real(tasks: Sequence[str], losses: Sequence[str], sizes: Sequence[str], seeds: int) -> list[RealUnit]:
    """Return the networks, the most valuable first: small ones seed by seed, large ones of :data:`CORE`, the rest."""
    ordered = [
        (size, seed, loss)
        for size in sizes
        for core in ((True, False) if size == "large" else (None,))
        for seed in range(seeds)
        for loss in losses
        if core is None or (loss in CORE) == core
    ]
    return [RealUnit(task, loss, size, seed) for size, seed, loss in ordered for task in tasks]
