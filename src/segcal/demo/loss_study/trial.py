"""A trial, in a process of its own, whether recorded steps work on this device and train like plain ones.

A recording that fails can leave a process without its device; so one process tries, and the others read what it found.
"""

import json
import time
import traceback
from pathlib import Path

import numpy as np

from segcal.demo.loss_study.data import Stored
from segcal.demo.loss_study.network import Effort, train_unit
from segcal.demo.loss_study.plan import CONFIGS, Unit
from segcal.demo.tasks import get_task

FINDING = "graph.json"
# How far the mean losses of a few epochs may differ: the order of sums on a GPU is not fixed.
TOLERANCE = 0.05
EPOCHS = 3
TRIED = ("ce_dice", "focal", "svls", "mbls", "nacl")
BATCHES = 3


def try_graphs(folder: Path, device: str, tasks: tuple[str, ...]) -> None:
    """Train a few steps both ways and write what was found."""
    try:
        finding = {"works": True, "seconds": {}}
        for task in tasks:
            finding["seconds"][task] = compare(task, device)  # type: ignore[index]
    except Exception:  # whatever it is: then steps are taken plainly
        finding = {"works": False, "reason": traceback.format_exc()}
    beside = folder / f".{FINDING}.part"
    beside.write_text(json.dumps(finding), encoding="utf-8")
    beside.replace(folder / FINDING)


def read_finding(folder: Path, patience: float) -> bool:
    """Wait for what the trial found; without an answer in time, steps are taken plainly."""
    until = time.time() + patience
    while time.time() < until and not (folder / FINDING).exists():
        time.sleep(0.2)
    if not (folder / FINDING).exists():
        return False
    return bool(json.loads((folder / FINDING).read_text(encoding="utf-8"))["works"])


def compare(task: str, device: str, variants: tuple[str, ...] = TRIED) -> list[float]:
    """Return the seconds of trainings with plain and with recorded steps, and fail if their losses differ."""
    cases = made_up_cases(task, BATCHES * CONFIGS[task].batch_size)
    seconds = [0.0, 0.0]
    for variant in variants:
        losses = {}
        for recorded in (True, False):
            started = time.perf_counter()
            effort = Effort(device, EPOCHS, recorded)
            trained, _ = train_unit(Unit(task, variant, 0), cases, cases[:1], effort)
            losses[recorded] = np.array([epoch.loss for epoch in trained.history])
            seconds[recorded] += time.perf_counter() - started
        if not np.allclose(losses[False], losses[True], rtol=TOLERANCE, atol=TOLERANCE):
            raise RuntimeError(f"{task} {variant}: plain losses {losses[False]}, recorded losses {losses[True]}")
    return [round(value, 2) for value in seconds]


def made_up_cases(task: str, count: int) -> list[Stored]:
    """Return cases of a task's size that are quick to draw: bright places are class 1."""
    facts, rng = get_task(task), np.random.default_rng(0)
    images = rng.random((count, facts.channels, *facts.space), np.float32)
    return [Stored(str(number), image, (image[0] > 0.5).astype(np.int64)) for number, image in enumerate(images)]
