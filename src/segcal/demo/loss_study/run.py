"""Running the study in several processes that share one device.

Every process goes down the same list of networks and claims what nobody has claimed, by creating a file; a result is
there or not, so a study that was stopped goes on where it was. A process that dies takes one network with it and no
more. After the deadline no new network is begun; what is still being trained a while later is given up.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

from segcal.cases import ArrayCases
from segcal.demo.loss_study.data import FULL, SMALL, all_chunks, write_chunk
from segcal.demo.loss_study.measure import fit_post_hoc, study_metrics
from segcal.demo.loss_study.network import Effort
from segcal.demo.loss_study.plan import Unit, plan_units
from segcal.demo.loss_study.rows import FACTS, pack, write_row
from segcal.demo.loss_study.trial import FINDING, read_finding, try_graphs
from segcal.demo.loss_study.unit import Desk, run_unit
from segcal.demo.tasks import TASKS
from segcal.evaluation.counting import Counter

# How long after the deadline a network may still be trained, and how often the archive is written anew.
GRACE = 30.0
PACK_EVERY = 30.0
# A process waits so long for cases that another one draws before it draws them itself.
PATIENCE = 60.0
# A process with so many failures one after the other has lost its device, and leaves the rest to others.
MOST_FAILURES = 3


@dataclass(frozen=True)
class Study:
    """What is to be run.

    Attributes:
        folder: cases, results and claims; a study goes on from what is there.
        archive: the file that all results are packed into.
        device: where to train.
        workers: how many processes share it.
        deadline: seconds after which no new network is begun.
        seeds: networks of each kind.
        tasks: names of tasks.
        small: few cases and two epochs, to try it out.
        limit: at most so many networks, or None.
    """

    folder: Path
    archive: Path
    device: str = "cpu"
    workers: int = 1
    deadline: float = 3600.0
    seeds: int = 3
    tasks: tuple[str, ...] = tuple(TASKS)
    small: bool = False
    limit: int | None = None

    def units(self) -> list[Unit]:
        """Return the networks, the most important first."""
        return plan_units(self.seeds, self.tasks)[: self.limit]

    def desk(self, graph: bool = False) -> Desk:
        """Return a place to work at."""
        effort = Effort(self.device, 2 if self.small else None, graph)
        return Desk(self.folder / "cases", self.folder / "rows", SMALL if self.small else FULL, effort)


def run_study(study: Study, say: Callable[[str], None] = print) -> int:
    """Run a study, write its archive, and return how many networks are still missing."""
    started = time.time()
    until = started + study.deadline
    for name in ("cases", "rows", "claims"):
        (study.folder / name).mkdir(parents=True, exist_ok=True)
    for claim in (study.folder / "claims").iterdir():  # of processes that are gone
        claim.unlink()
    spawn = get_context("spawn").Process
    workers: list[BaseProcess] = [spawn(target=work, args=(study, until), daemon=True) for _ in range(study.workers)]
    others: list[BaseProcess] = [spawn(target=warm_up, daemon=True)] if workers else []
    (study.folder / "claims" / FINDING).unlink(missing_ok=True)
    if torch.device(study.device).type == "cuda":
        others.append(spawn(target=try_graphs, args=(study.folder / "claims", study.device, study.tasks), daemon=True))
    for process in [*others, *workers]:
        process.start()
    _watch(study, workers, until + GRACE, lambda text: say(f"{time.time() - started:5.0f} s {text}"))
    _end([*others, *workers])
    missing = [unit for unit in study.units() if not _row(study, unit).exists()]
    write_row(study.folder / "rows", FACTS, _facts(study, time.time() - started, len(missing)))
    pack(study.folder / "rows", study.archive)
    say(f"{len(study.units()) - len(missing)} of {len(study.units())} networks are in {study.archive.name}")
    return len(missing)


def work(study: Study, until: float) -> None:
    """Draw cases, then train and measure networks, until there is nothing left or no time."""
    torch.set_num_threads(max((os.cpu_count() or 1) // study.workers, 1))
    _draw_cases(study, study.desk())
    on_gpu = torch.device(study.device).type == "cuda"
    desk = study.desk(graph=on_gpu and read_finding(study.folder / "claims", PATIENCE))
    failures = 0
    for unit in study.units():
        if time.time() >= until or failures == MOST_FAILURES:
            return
        if not _row(study, unit).exists() and _claim(study, unit.name):
            failures = 0 if _attempt(unit, desk) else failures + 1


def _attempt(unit: Unit, desk: Desk) -> bool:
    """Run a unit; if it fails with recorded steps, once more with plain ones. Its reason goes into the archive."""
    for graph in (True, False) if desk.effort.graph else (False,):
        desk.effort = replace(desk.effort, graph=graph)
        try:
            run_unit(unit, desk)
            return True
        except Exception:  # one network that fails must not end the others
            (desk.rows / f"{unit.name}.error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            print(f"{unit.name} failed: {sys.exc_info()[1]!r}", file=sys.stderr, flush=True)
    return False


def warm_up() -> None:
    """Have the compiled loops compiled, while others draw cases: each process would wait for the compiler otherwise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (4, 8, 9))
    logits = rng.normal(size=(4, 3, 8, 9)).astype(np.float32)
    cases = ArrayCases(logits=list(logits), labels=list(labels))
    calibrators, _ = fit_post_hoc(cases, cases, names=("ts", "cms_ap"))
    counter = Counter(study_metrics(background=True, surface=False))
    for case in cases:
        counter.count_each(case, calibrators)


def _draw_cases(study: Study, desk: Desk) -> None:
    chunks = list(all_chunks(study.tasks, desk.sizes))
    for chunk in chunks:
        if not (desk.cache / chunk.name).exists() and _claim(study, chunk.name):
            write_chunk(desk.cache, chunk)
    waited = time.time()
    for chunk in chunks:
        while not (desk.cache / chunk.name).exists():
            if time.time() - waited > PATIENCE:
                write_chunk(desk.cache, chunk)
            time.sleep(0.1)


def _claim(study: Study, name: str) -> bool:
    try:
        (study.folder / "claims" / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _row(study: Study, unit: Unit) -> Path:
    return study.folder / "rows" / f"{unit.name}.json"


def _watch(study: Study, processes: list[BaseProcess], last: float, say: Callable[[str], None]) -> None:
    packed = time.time()
    while any(process.is_alive() for process in processes):
        time.sleep(0.5)
        if time.time() > last:
            say("out of time: giving up what is not finished")
            return
        if time.time() - packed > PACK_EVERY:
            packed = time.time()
            done = sum(_row(study, unit).exists() for unit in study.units())
            say(f"{done} of {len(study.units())} networks, {pack(study.folder / 'rows', study.archive)} files packed")


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)


def _facts(study: Study, seconds: float, missing: int) -> dict[str, object]:
    on_gpu = torch.device(study.device).type == "cuda" and torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "workers": study.workers,
        "seconds": round(seconds),
        "missing": missing,
        "small": study.small,
        "graph": _finding(study),
    }


def _finding(study: Study) -> object:
    path = study.folder / "claims" / FINDING
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
