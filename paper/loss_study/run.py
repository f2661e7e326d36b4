"""Running the study in several processes: some train, several networks at once on one device, others measure.

Every process goes down the same list of networks and claims what nobody has claimed, by creating a file; a result is
there or not, so a study that was stopped goes on where it was, and a training from its last checkpoint. A process that
dies takes its networks with it and no more. After the deadline nothing new is begun, and a while later what is not
finished is given up.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paper.loss_study.data import all_chunks, write_chunk
from paper.loss_study.measure import fit_post_hoc, study_metrics
from paper.loss_study.plan import Unit
from paper.loss_study.results import read_by_pages
from paper.loss_study.rows import FACTS, collect, write_failure, write_row
from paper.loss_study.study import Study, measure_unit, train_unit
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import Steps
from paper.loss_study.trial import FINDING, read_finding, try_graphs
from segcal.atomic import write_text
from segcal.cases import ArrayCases
from segcal.documents import parse_json
from segcal.errors import ArtifactError, InputError
from segcal.evaluation.case_counter import Counter
from segcal.parent import follow_parent
from segcal.target import entries

# How long after the deadline a network may still be worked on, and how often results are collected anew.
GRACE = 30.0
COLLECT_EVERY = 30.0
# A process waits so long for cases that another one draws before it draws them itself.
PATIENCE = 60.0
# A process with so many failures one after the other has lost its device, and leaves the rest to others.
MOST_FAILURES = 3
# A claim that says that no more networks will be trained.
TRAINED = "all-trained"

# The kind of study that a folder is made for.
SIZES = "study.json"


def run_study(study: Study, say: Callable[[str], None] = print) -> int:
    """Run a study, collect its results, and return how many networks are still missing."""
    started = time.time()
    _check_folder(study)
    study.desk()  # makes the folders
    for claim in (study.folder / "claims").iterdir():  # of processes that are gone
        claim.unlink()
    if _missing(study):
        _run_processes(study, started + study.deadline, lambda text: say(f"{time.time() - started:5.0f} s {text}"))
    total, missing = len(study.units()), _missing(study)
    write_row(study.folder / "rows", FACTS, _facts(study, time.time() - started, missing))
    collect(study.folder / "rows", study.lines, read_by_pages)
    say(f"{total - missing} of {total} networks are in {study.lines.name}")
    return missing


def _missing(study: Study) -> int:
    desk = study.desk()
    return sum(not desk.row(unit).exists() for unit in study.units())


def _run_processes(study: Study, until: float, say: Callable[[str], None]) -> None:
    spawn = get_context("spawn").Process
    trainers: list[BaseProcess] = [
        spawn(target=train_networks, args=(study, until), daemon=True) for _ in range(study.trainers)
    ]
    measurers: list[BaseProcess] = [
        spawn(target=measure_networks, args=(study, until), daemon=True) for _ in range(study.measurers)
    ]
    others: list[BaseProcess] = [spawn(target=warm_up, daemon=True)] if measurers else []
    if trainers and torch.device(study.device).type == "cuda":
        others.append(spawn(target=try_graphs, args=(study.folder / "claims", study.device, study.tasks), daemon=True))
    for process in [*others, *trainers, *measurers]:
        process.start()
    try:
        _watch(study, trainers, measurers, until + GRACE, say)
    finally:
        _end([*others, *trainers, *measurers])


def train_networks(study: Study, until: float) -> None:
    """Draw cases, then train networks, until there is nothing left or no time."""
    _begin(study)
    on_gpu = torch.device(study.device).type == "cuda"
    desk = study.desk(graph=on_gpu and read_finding(study.folder / "claims", PATIENCE))
    failures = 0

    def trainings() -> Iterator[tuple[Unit, Steps]]:
        for unit in study.units():
            if time.time() >= until or failures >= MOST_FAILURES:
                return
            if not (desk.row(unit).exists() or desk.weights(unit).exists()) and claimed(
                study.folder / "claims" / unit.name
            ):
                yield unit, train_unit(unit, desk)

    for ended in take_turns(trainings(), study.at_once, study.device):
        failures = 0 if ended.error is None else failures + 1
        if ended.error is not None:
            write_failure(study.folder / "rows", ended.name.name, ended.error)


def measure_networks(study: Study, until: float) -> None:
    """Draw cases, then measure networks as they come, until there is nothing left or no time."""
    _begin(study)
    desk = study.desk()

    def waiting() -> list[Unit]:
        return [unit for unit in study.units() if desk.weights(unit).exists() and not desk.row(unit).exists()]

    measure_as_they_come(study.folder, waiting, lambda unit: measure_unit(unit, desk), until)


def measure_as_they_come(
    folder: Path, waiting: Callable[[], Sequence[Any]], measure: Callable[[Any], None], until: float
) -> None:
    """Measure what is waiting and nobody has claimed, until all is trained and measured, or no time is left."""
    while time.time() < until:
        last = (folder / "claims" / TRAINED).exists()
        unit = next((unit for unit in waiting() if claimed(folder / "claims" / f"measure-{unit.name}")), None)
        if unit is None:
            if last:
                return
            time.sleep(0.2)
            continue
        try:
            measure(unit)
        except Exception as error:  # one network that fails must not end the others
            write_failure(folder / "rows", unit.name, error)


def claimed(path: Path) -> bool:
    """Return whether this process is the first to claim it: one of many may work on a network."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def warm_up(names: Sequence[str] = ("ts", "cms_ap")) -> None:
    """Have the compiled loops compiled, while others draw cases: each process would wait for the compiler otherwise."""
    follow_parent()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (4, 8, 9))
    logits = rng.normal(size=(4, 3, 8, 9)).astype(np.float32)
    cases = ArrayCases(logits=list(logits), labels=list(labels))
    calibrators, _ = fit_post_hoc(cases, cases, names=names)
    counter = Counter(study_metrics(background=True, surface=False))
    for case in cases:
        counter.count_each(case, calibrators)


def _check_folder(study: Study) -> None:
    """Refuse a folder of something else, or of a study of another size: what is in it will be changed."""
    path, sizes = study.folder / SIZES, {"small": study.small}
    if not path.exists():
        if entries(study.folder):
            raise InputError(f"{study.folder} holds files that are no study. Choose a new or an empty folder.")
        write_text(path, json.dumps(sizes))
    elif _read_sizes(path) != sizes:
        there, here = ("full", "small") if study.small else ("small", "full")
        raise InputError(f"{study.folder} holds a {there} study, but this one is {here}. Choose another folder.")


def _read_sizes(path: Path) -> object:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ArtifactError(f"{path} is not readable. Choose another folder.") from None


def _begin(study: Study) -> None:
    follow_parent()
    torch.set_num_threads(study.threads())
    _draw_cases(study)


def _draw_cases(study: Study) -> None:
    desk = study.desk()
    cache = study.folder / "cases"
    chunks = list(all_chunks(study.tasks, desk.sizes))
    for chunk in chunks:
        if not (cache / chunk.name).exists() and claimed(study.folder / "claims" / chunk.name):
            write_chunk(cache, chunk)
    waited = time.time()
    for chunk in chunks:
        while not (cache / chunk.name).exists():
            if time.time() - waited > PATIENCE:
                write_chunk(cache, chunk)
            time.sleep(0.1)


def _watch(
    study: Study, trainers: list[BaseProcess], measurers: list[BaseProcess], last: float, say: Callable[[str], None]
) -> None:
    desk = study.desk()
    collected = time.time()
    while any(process.is_alive() for process in [*trainers, *measurers]):
        time.sleep(0.5)
        if not any(process.is_alive() for process in trainers):
            (study.folder / "claims" / TRAINED).touch()
        if time.time() > last:
            say("out of time: giving up what is not finished")
            return
        if time.time() - collected > COLLECT_EVERY:
            collected = time.time()
            units = study.units()
            done = sum(desk.row(unit).exists() for unit in units)
            kept = sum(desk.weights(unit).exists() for unit in units)
            collect(study.folder / "rows", study.lines, read_by_pages)
            say(f"{done} of {len(units)} networks measured, {kept} trained here")


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
        "processes": [study.trainers, study.at_once, study.measurers],
        "seconds": round(seconds),
        "missing": missing,
        "small": study.small,
        "graph": _finding(study),
    }


def _finding(study: Study) -> object:
    path = study.folder / "claims" / FINDING
    return parse_json(path.read_text(encoding="utf-8")) if path.exists() else None
