"""The study of losses on real data: every loss with and without a Dice term, two sizes of networks, several seeds.

    python -m benchmarks.loss_study real ROOT --out DIR --device cuda

One JSON file per network: its Dice, NLL, ECE and BA-ECE of every test case, as trained and after calibration, which is
fitted to other patients or frames. Stopped, it goes on with the networks that have no file; several processes share the
work if each is given its part (``--part 0/4``). The page has means with intervals over seeds and test cases, and the
paired differences from CE + Dice, before and after calibration.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from benchmarks.loss_study import real_data
from benchmarks.loss_study.measure import NONE, fit_post_hoc, rounded
from benchmarks.loss_study.plan import MAIN, VARIANTS
from benchmarks.loss_study.real_data import find_parts, pictures, read_case
from benchmarks.loss_study.trainer import train
from benchmarks.loss_study.training import TrainConfig
from segcal.atomic import write_text
from segcal.cases import ArrayCases
from segcal.demo.unet import UNet
from segcal.evaluation.case_counter import Counter
from segcal.losses import Dice, make_loss
from segcal.metrics import METRICS
from segcal.summary import Draws, Interval, difference, estimate
from segcal.types import IGNORED

WITH_DICE = "_dice"
OWN_DICE = ("ce_dice", "ml1_ace", "ml1_ace_soft")
# Every loss of the main table, those with a calibration term, and each of those without a Dice term with one.
LOSSES = tuple(
    dict.fromkeys(
        [*MAIN, "ml1_ace", "ml1_ace_soft", *(f"{name}{WITH_DICE}" for name in MAIN if name not in ("ce", *OWN_DICE))]
    )
)
SIZES: dict[str, tuple[int, ...]] = {"small": (16, 32, 64, 128), "large": (32, 64, 128, 256, 320)}
POST_HOC = ("ts", "cms_ap")
SHOWN = {"dice": "Dice", "nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE"}
BASELINE = "ce_dice"
INTRODUCTION = (
    "Written by `python -m benchmarks.loss_study real`. Test cases are of other patients, or of another video, than "
    "those of training; calibrators are fitted to cases between them. *none* is the network as trained."
)


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
    """What was measured of a network: numbers per test case, by pipeline ("none": as trained) and metric."""

    unit: RealUnit
    cases: tuple[str, ...]
    values: dict[str, dict[str, list[float | None]]]


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
    """One run; cases are read once.

    Attributes:
        root: the folder of the real data.
        out: one JSON file per network, and the page.
        device: where to train and predict.
        epochs: of a training.
        most: at most so many cases of each part, to try it out; None for all.
    """

    root: Path
    out: Path
    device: str = "cpu"
    epochs: int = 60
    most: int | None = None
    _read: dict[tuple[str, str], list[tuple[str, np.ndarray, np.ndarray]]] = field(default_factory=dict, repr=False)

    def part(self, task: str, part: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return name, image and labels of the cases of a part."""
        if (task, part) not in self._read:
            cases = find_parts(self.root, task)[part][: self.most]
            self._read[task, part] = [(case.id, *read_case(task, case)) for case in cases]
        return self._read[task, part]

    def run(self, units: Sequence[RealUnit], say: Callable[[str], None] = print) -> None:
        """Train and measure the networks that have no file yet."""
        for number, unit in enumerate(units, 1):
            path = self.out / f"{unit.name}.json"
            if not path.exists():
                row = self.measure(unit, self.train(unit))
                write_text(path, json.dumps(msgspec.to_builtins(row)) + "\n")
                say(f"{number} of {len(units)}: {unit.name}")

    def train(self, unit: RealUnit) -> nn.Module:
        """Train one network."""
        task = real_data.TASKS[unit.task]
        torch.manual_seed(unit.seed)
        network = UNet(channels=task.channels, num_classes=task.num_classes, widths=SIZES[unit.size])
        on_gpu = torch.device(self.device).type == "cuda"
        config = TrainConfig(
            epochs=self.epochs,
            batch_size=8,
            flips=task.flips,
            seed=unit.seed,
            device=self.device,
            amp=on_gpu,
            validate_every=max(self.epochs // 6, 1),
            include_background=not task.background,
        )
        pairs = {part: self._pictures(unit.task, part) for part in ("train", "valid")}
        return train(network, loss_of(unit.loss), pairs["train"], config, pairs["valid"]).network

    def _pictures(self, task: str, part: str) -> list[tuple[Tensor, Tensor]]:
        found = [pair for _, image, labels in self.part(task, part) for pair in pictures(image, labels)]
        return [tuple(torch.from_numpy(one.copy()).to(self.device) for one in pair) for pair in found]  # type: ignore[misc]

    def measure(self, unit: RealUnit, network: nn.Module) -> RealRow:
        """Measure one network as trained and after each calibrator."""
        task = real_data.TASKS[unit.task]
        cal, val, test = (self._cases(unit.task, part, network) for part in ("cal", "val", "test"))
        calibrators, _ = fit_post_hoc(cal, val, POST_HOC)
        metrics = {name: METRICS[name] for name in SHOWN}
        metrics["dice"] = METRICS["dice"].with_options(include_background=not task.background)
        counter = Counter(metrics)
        values: dict[str, dict[str, list[float | None]]] = {}
        for case in test:
            before, after = counter.count_each(case, calibrators)
            for name, counted in {NONE: before, **after}.items():
                for key, metric in metrics.items():
                    values.setdefault(name, {}).setdefault(key, []).append(rounded(metric(counted.tables)))
        return RealRow(unit, tuple(test.ids), values)

    @torch.no_grad()
    def _cases(self, task: str, part: str, network: nn.Module) -> ArrayCases:
        network.eval()
        stored = self.part(task, part)
        logits = []
        for _, image, labels in stored:
            planes = torch.from_numpy(image if labels.ndim == 2 else image.swapaxes(0, 1).copy()).to(self.device)
            planes = planes[None] if labels.ndim == 2 else planes
            found = torch.cat([network(plane[None]).float().cpu() for plane in planes])
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


def plan_real(
    tasks: Sequence[str], losses: Sequence[str], sizes: Sequence[str], seeds: int, part: tuple[int, int] = (0, 1)
) -> list[RealUnit]:
    """Return the networks of one process of several, the small ones first, seed by seed."""
    units = [RealUnit(t, loss, size, seed) for size in sizes for seed in range(seeds) for loss in losses for t in tasks]
    return units[part[0] :: part[1]]


def read_rows(folder: Path) -> list[RealRow]:
    """Read what is there."""
    return [msgspec.json.decode(path.read_bytes(), type=RealRow) for path in sorted(folder.glob("*-*.json"))]


def real_page(rows: Sequence[RealRow]) -> str:
    """Return the page: one table per task and size."""
    parts = ["# Losses on real data", INTRODUCTION]
    for task, size in sorted({(row.unit.task, row.unit.size) for row in rows}):
        mine = [row for row in rows if (row.unit.task, row.unit.size) == (task, size)]
        parts += [f"## {task}, {size} network", "\n".join(_table(mine))]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[RealRow]) -> list[str]:
    seeds = _common_seeds(rows)
    head = ["loss", "Dice", *(f"{SHOWN[m]} {p}" for p in (NONE, *POST_HOC) for m in ("nll", "ece", "ba_ece"))]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    by_loss: dict[str, list[RealRow]] = {row.unit.loss: [] for row in rows}
    for row in rows:
        if row.unit.seed in seeds:
            by_loss[row.unit.loss].append(row)
    for loss in sorted(by_loss, key=lambda name: LOSSES.index(name) if name in LOSSES else len(LOSSES)):
        cells = [_cell(by_loss, loss, NONE, "dice")]
        cells += [_cell(by_loss, loss, pipeline, m) for pipeline in (NONE, *POST_HOC) for m in ("nll", "ece", "ba_ece")]
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    note = f"Mean [95 % interval over {len(seeds)} seeds and test cases]; in brackets the paired difference from"
    return [*lines, "", f"{note} {BASELINE}, **bold** where its interval leaves out zero."]


def _common_seeds(rows: Sequence[RealRow]) -> list[int]:
    losses = {row.unit.loss for row in rows}
    seeds = sorted({row.unit.seed for row in rows})
    return [seed for seed in seeds if {row.unit.loss for row in rows if row.unit.seed == seed} == losses] or seeds[:1]


def _cell(by_loss: dict[str, list[RealRow]], loss: str, pipeline: str, metric: str) -> str:
    own, base = (_columns(by_loss.get(name, []), pipeline, metric) for name in (loss, BASELINE))
    if not own:
        return ""
    draws = Draws([len(column) for column in own])
    text = _text(estimate(own, draws))
    if loss == BASELINE or [len(c) for c in base] != [len(c) for c in own]:
        return text
    gap = difference(base, own, draws, METRICS[metric].better)
    clear = gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0)
    shown = "" if gap.value is None else f"{gap.value:+.4f}"
    return f"{text} ({f'**{shown}**' if clear else shown})"


def _columns(rows: Sequence[RealRow], pipeline: str, metric: str) -> list[np.ndarray]:
    ordered = sorted((row for row in rows if pipeline in row.values), key=lambda row: row.unit.seed)
    return [np.array([np.nan if v is None else v for v in row.values[pipeline][metric]]) for row in ordered]


def _text(one: Interval) -> str:
    return "–" if one.value is None else f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]"


def run_real(study: RealStudy, units: Sequence[RealUnit], say: Callable[[str], None] = print) -> Path:
    """Run the networks and write the page of all that are there."""
    study.out.mkdir(parents=True, exist_ok=True)
    study.run(units, say)
    page = study.out / "real_losses.md"
    write_text(page, real_page(read_rows(study.out)))
    return page
