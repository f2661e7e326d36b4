"""One network of the study from beginning to end: train, predict, calibrate, measure, write."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.demo.loss_study.data import Sizes, Stored, read_part
from segcal.demo.loss_study.measure import Measurer, fit_post_hoc, logit_profile, plain_curve, predict, rounded
from segcal.demo.loss_study.network import Effort, train_unit
from segcal.demo.loss_study.plan import Unit
from segcal.demo.loss_study.rows import write_arrays, write_row
from segcal.demo.tasks import get_task
from segcal.training import Trained

# The test case that pictures are made of.
SHOWN = 0


@dataclass
class Desk:
    """What a process keeps between two networks: the cases it has read.

    Attributes:
        cache: the folder of the cases.
        rows: the folder of the results.
        sizes: how many cases there are.
        effort: how much is put into a training.
    """

    cache: Path
    rows: Path
    sizes: Sizes
    effort: Effort
    parts: dict[tuple[str, str], list[Stored]] = field(default_factory=dict)
    measurers: dict[str, Measurer] = field(default_factory=dict)

    def part(self, task: str, part: str) -> list[Stored]:
        """Return the cases of a part, read once."""
        if (task, part) not in self.parts:
            self.parts[task, part] = read_part(self.cache, task, part, self.sizes)
        return self.parts[task, part]

    def measurer(self, task: str) -> Measurer:
        """Return what measures the cases of a task."""
        return self.measurers.setdefault(task, Measurer(get_task(task)))


def run_unit(unit: Unit, desk: Desk) -> None:
    """Train and measure one network, and write its row."""
    started = time.perf_counter()
    trained, histograms = train_unit(unit, desk.part(unit.task, "train"), desk.part(unit.task, "valid"), desk.effort)
    after_training = time.perf_counter()
    row = _measured(unit, trained, desk)
    seconds = {"train": after_training - started, "measure": time.perf_counter() - after_training}
    row |= {
        "unit": asdict(unit),
        "seconds": {key: round(value, 2) for key, value in seconds.items()},
        "best_dice": rounded(trained.best_dice),
        "best_epoch": trained.best_epoch,
        "history": [[epoch.number, rounded(epoch.loss), rounded(epoch.dice)] for epoch in trained.history],
        "logit_histograms": histograms if unit.main else {},
    }
    write_row(desk.rows, unit.name, row)


def _measured(unit: Unit, trained: Trained, desk: Desk) -> dict[str, Any]:
    measurer, device = desk.measurer(unit.task), desk.effort.device
    test = desk.part(unit.task, "test")
    logits = predict(trained.network, test, device)
    calibrators: dict[str, Calibrator] = {}
    fits: dict[str, Any] = {}
    if unit.main:
        stored = {part: desk.part(unit.task, part) for part in ("cal", "val")}
        cases = {part: measurer.cases(own, predict(trained.network, own, device)) for part, own in stored.items()}
        calibrators, fits = fit_post_hoc(cases["cal"], cases["val"], device)
    clean, curves = measurer.measure(measurer.cases(test, logits), calibrators, surface=True)
    values = {"clean": clean}
    corrupted = desk.part(unit.task, "corrupted") if unit.main else []
    if corrupted:
        shifted = measurer.cases(corrupted, predict(trained.network, corrupted, device))
        values["corrupted"], _ = measurer.measure(shifted, calibrators, surface=False)
    if unit.main and unit.seed == 0:
        _write_picture(unit, test[SHOWN], logits[SHOWN], desk.rows)
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
    arrays = {
        "prediction": prediction.numpy()[place].astype(np.uint8),
        "confidence": np.rint(255 * confidence.numpy()[place]).astype(np.uint8),
    }
    write_arrays(folder, unit.name, arrays)
    scaled = case.image[(slice(None), *place)]
    low, high = scaled.min(), scaled.max()
    picture = np.rint(255 * (scaled - low) / max(high - low, 1e-9)).astype(np.uint8)
    write_arrays(folder, f"{unit.task}-shown", {"image": picture, "labels": case.labels[place].astype(np.int8)})


def slice_shown(labels: np.ndarray) -> tuple[slice | int, ...]:
    """Return an index of the whole picture, or of the slice of a volume (along its last axis) with most foreground."""
    if labels.ndim == 2:
        return (slice(None), slice(None))
    return (slice(None), slice(None), int((labels > 0).sum((0, 1)).argmax()))
