"""A trial, in a process of its own, whether recorded steps side by side train like plain ones after each other.

A recording that fails can leave a process without its device; so one process tries, and the others read what it found.
"""

import json
import time
import traceback
from pathlib import Path

import numpy as np

from paper.loss_study.data import Stored
from paper.loss_study.network import Data, Effort, unit_steps
from paper.loss_study.plan import CONFIGS, Unit
from paper.loss_study.together import take_turns
from segcal.atomic import write_text
from segcal.demo.tasks import get_task
from segcal.documents import parse_json
from segcal.parent import follow_parent

FINDING = "graph.json"
# How far the mean losses of a few epochs may differ: the order of sums on a GPU is not fixed.
TOLERANCE = 0.05
EPOCHS = 3
TRIED = ("ce_dice", "focal", "svls", "mbls", "nacl")
BATCHES = 3


def try_graphs(folder: Path, device: str, tasks: tuple[str, ...]) -> None:
    """Train a few steps both ways and write what was found."""
    follow_parent()
    try:
        finding = {"works": True, "seconds": {}}
        for task in tasks:
            finding["seconds"][task] = compare(task, device)  # type: ignore[index]
    except Exception:  # whatever it is: then steps are taken plainly
        finding = {"works": False, "reason": traceback.format_exc()}
    write_text(folder / FINDING, json.dumps(finding))


def read_finding(folder: Path, patience: float) -> bool:
    """Wait for what the trial found; without an answer in time, steps are taken plainly."""
    until = time.time() + patience
    while time.time() < until and not (folder / FINDING).exists():
        time.sleep(0.2)
    if not (folder / FINDING).exists():
        return False
    return bool(parse_json((folder / FINDING).read_text(encoding="utf-8"))["works"])


def compare(task: str, device: str, variants: tuple[str, ...] = TRIED) -> list[float]:
    """Return the seconds of trainings with plain and with recorded steps, and fail if their losses differ."""
    cases = made_up_cases(task, BATCHES * CONFIGS[task].batch_size)
    seconds, losses = [], {}
    for recorded in (False, True):
        started = time.perf_counter()
        effort = Effort(device, EPOCHS, recorded)
        units = [Unit(task, variant, 0) for variant in variants]
        trainings = ((unit, unit_steps(unit, Data(cases, cases[:1]), effort, {})) for unit in units)
        for ended in take_turns(trainings, len(units) if recorded else 1, device):
            if ended.error is not None:
                raise ended.error
            assert ended.trained is not None
            losses[recorded, ended.name.variant] = [epoch.loss for epoch in ended.trained.history]
        seconds.append(round(time.perf_counter() - started, 2))
    for variant in variants:
        plain, replayed = losses[False, variant], losses[True, variant]
        if not np.allclose(plain, replayed, rtol=TOLERANCE, atol=TOLERANCE):
            raise RuntimeError(f"{task} {variant}: plain losses {plain}, recorded losses {replayed}")
    return seconds


def made_up_cases(task: str, count: int) -> list[Stored]:
    """Return cases of a task's size that are quick to draw: bright places are class 1."""
    facts, rng = get_task(task), np.random.default_rng(0)
    images = rng.random((count, facts.channels, *facts.space), np.float32)
    return [Stored(str(number), image, (image[0] > 0.5).astype(np.int64)) for number, image in enumerate(images)]
