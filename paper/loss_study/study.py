"""The study as plain data, and one of its networks from beginning to end: train, keep; predict, calibrate, measure."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paper.loss_study.data import FULL, SMALL, Sizes, Stored, read_part
from paper.loss_study.measure import Measurer, fit_post_hoc, logit_profile, plain_curve, predict, rounded
from paper.loss_study.network import Data, Effort, Histograms, make_network, unit_steps
from paper.loss_study.plan import Unit, plan_units
from paper.loss_study.rows import read_weights, write_picture, write_row, write_weights
from paper.loss_study.trainer import Steps, Trained
from segcal.calibrators import Calibrator
from segcal.demo.tasks import TASKS, get_task

# The test case that pictures are made of.
SHOWN = 0
FOLDERS = ("cases", "weights", "checkpoints", "rows", "claims")


@dataclass
class Desk:
    """The workplace of a process, which keeps the cases it has read between two networks.

    Attributes:
        folder: of the study.
        sizes: how many cases there are.
        effort: how much is put into a training.
    """

    folder: Path
    sizes: Sizes
    effort: Effort
    parts: dict[tuple[str, str], list[Stored]] = field(default_factory=dict)
    measurers: dict[str, Measurer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def part(self, task: str, part: str) -> list[Stored]:
        """Return the cases of a part, read once."""
        if (task, part) not in self.parts:
            self.parts[task, part] = read_part(self.folder / "cases", task, part, self.sizes)
        return self.parts[task, part]

    def measurer(self, task: str) -> Measurer:
        """Return what measures the cases of a task."""
        return self.measurers.setdefault(task, Measurer(get_task(task)))

    def row(self, unit: Unit) -> Path:
        """Return the file of a network's results."""
        return self.folder / "rows" / f"{unit.name}.json"

    def weights(self, unit: Unit) -> Path:
        """Return the file of a network's weights."""
        return self.folder / "weights" / f"{unit.name}.safetensors"

    def checkpoint(self, unit: Unit) -> Path:
        """Return the file from which an interrupted training goes on."""
        return self.folder / "checkpoints" / f"{unit.name}.pt"


def train_unit(unit: Unit, desk: Desk) -> Steps:
    """Train one network step by step, and keep its weights."""
    data = Data(desk.part(unit.task, "train"), desk.part(unit.task, "valid"), desk.checkpoint(unit))
    histograms = data.histograms()
    trained = yield from unit_steps(unit, data, desk.effort, histograms)
    write_weights(desk.weights(unit), trained.network, _record(trained, histograms))
    data.forget()
    return trained


def measure_unit(unit: Unit, desk: Desk) -> None:
    """Measure one network that was kept, and write its row."""
    network = make_network(unit)
    record = read_weights(desk.weights(unit), network)
    row = _measured(unit, network.to(desk.effort.device), desk)
    write_row(desk.folder / "rows", unit.name, row | record | {"unit": asdict(unit)})


def _record(trained: Trained, histograms: Histograms) -> dict[str, Any]:
    return {
        "best_dice": rounded(trained.best_dice),
        "best_epoch": trained.best_epoch,
        "history": [[epoch.number, rounded(epoch.loss), rounded(epoch.dice)] for epoch in trained.history],
        "logit_histograms": histograms,
    }


def _measured(unit: Unit, network: nn.Module, desk: Desk) -> dict[str, Any]:
    measurer, device = desk.measurer(unit.task), desk.effort.device
    test = desk.part(unit.task, "test")
    logits = predict(network, test, device)
    calibrators: dict[str, Calibrator] = {}
    fits: dict[str, Any] = {}
    if unit.main:
        stored = {part: desk.part(unit.task, part) for part in ("cal", "val")}
        cases = {part: measurer.cases(own, predict(network, own, device)) for part, own in stored.items()}
        calibrators, fits = fit_post_hoc(cases["cal"], cases["val"])
    clean, curves = measurer.measure(measurer.cases(test, logits), calibrators, surface=True)
    values = {"clean": clean}
    corrupted = desk.part(unit.task, "corrupted") if unit.main else []
    if corrupted:
        shifted = measurer.cases(corrupted, predict(network, corrupted, device))
        values["corrupted"], _ = measurer.measure(shifted, calibrators, surface=False)
    if unit.main and unit.seed == 0:
        _write_picture(unit, test[SHOWN], logits[SHOWN], desk.folder / "rows")
    return {
        "cases": [case.id for case in test],
        "values": values,
        "fits": fits,
        "curve": plain_curve(curves),
        "shown_curve": plain_curve(curves[SHOWN : SHOWN + 1]),
        "logit_profile": logit_profile(logits, test, get_task(unit.task).num_classes),
    }


def _write_picture(unit: Unit, case: Stored, logits: Tensor, folder: Path) -> None:
    """Keep prediction and confidence of the shown case, of a volume the slice with the most foreground."""
    confidence, prediction = torch.softmax(logits, dim=0).max(dim=0)
    place = slice_shown(case.labels)
    write_picture(folder, f"{unit.name}-prediction", prediction.numpy()[place].astype(np.uint8))
    write_picture(folder, f"{unit.name}-confidence", np.rint(255 * confidence.numpy()[place]).astype(np.uint8))
    scaled = case.image[(slice(None), *place)]
    low, high = scaled.min(), scaled.max()
    picture = np.rint(255 * (scaled - low) / max(high - low, 1e-9)).astype(np.uint8)
    colours = np.moveaxis(picture, 0, 2) if len(picture) == 3 else picture[-1]
    write_picture(folder, f"{unit.task}-shown-image", colours)
    write_picture(folder, f"{unit.task}-shown-labels", case.labels[place].astype(np.int8))


def slice_shown(labels: np.ndarray) -> tuple[slice | int, ...]:
    """Return an index of the whole picture, or of the slice of a volume (along its last axis) with most foreground."""
    if labels.ndim == 2:
        return (slice(None), slice(None))
    return (slice(None), slice(None), int((labels > 0).sum((0, 1)).argmax()))


@dataclass(frozen=True)
class Study:
    """The plan of one run.

    Attributes:
        folder: cases, weights, results and claims; a study goes on from what is there.
        lines: the file that results are collected in.
        device: where to train.
        trainers: how many processes train.
        at_once: how many networks each of them trains side by side.
        measurers: how many processes measure.
        deadline: seconds after which nothing new is begun.
        seeds: networks of each kind.
        tasks: names of tasks.
        main: only the networks of the main table.
        small: few cases and two epochs, to try it out.
        limit: at most so many networks, or None.
    """

    folder: Path
    lines: Path
    device: str = "cpu"
    trainers: int = 1
    at_once: int = 1
    measurers: int = 1
    deadline: float = 3600.0
    seeds: int = 3
    tasks: tuple[str, ...] = tuple(TASKS)
    main: bool = False
    small: bool = False
    limit: int | None = None

    def units(self) -> list[Unit]:
        """Return the networks, the most important first."""
        return plan_units(self.seeds, self.tasks, self.main)[: self.limit]

    def desk(self, graph: bool = False) -> Desk:
        """Return a place to work at."""
        return Desk(self.folder, SMALL if self.small else FULL, Effort(self.device, 2 if self.small else None, graph))

    def threads(self) -> int:
        """Return how many threads a process may use."""
        return max((os.cpu_count() or 1) // max(self.trainers + self.measurers, 1), 1)
