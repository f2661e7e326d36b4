"""Running a protocol: what is finished is skipped, the rest is done in jobs, and every file is complete or absent.

``RESULTS/protocol.json`` holds the resolved protocol and the list of its units, ``RESULTS/units`` one file a unit
(:mod:`segcal.benchmark.results`), ``RESULTS/calibrators`` the fitted calibrators, as :func:`segcal.save` writes them.
Killed at any point and run again, a benchmark ends with the same bytes.
"""

import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from segcal.atomic import sweep, write_text
from segcal.benchmark.job import CALIBRATORS, Context, run_job
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import PROTOCOL, Results, finished, read_protocol, read_results
from segcal.benchmark.tasks import Opener, OpenTask, open_task
from segcal.benchmark.units import SCHEMA, Job, divide, plan, unit_digest
from segcal.errors import InputError, SegcalError
from segcal.parent import follow_parent

# The folders and the files of a folder of results.
PARTS = ("units", CALIBRATORS, "tables", "studies")
FILES = ("summary.json", "report.html", "verdict.json")


@dataclass(frozen=True)
class Step:
    """How far a run is.

    Attributes:
        done: units that are finished.
        total: all units.
        message: what is being done.
    """

    done: int
    total: int
    message: str


def run_benchmark(
    protocol: Protocol,
    folder: str | Path,
    embedded: Opener | None = None,
    progress: Callable[[Step], None] = lambda step: None,
    overwrite: bool = False,
) -> Results:
    """Run a protocol and return its results.

    Args:
        protocol: the protocol.
        folder: where results go; what is finished there is not done again.
        embedded: opens embedded tasks: :func:`segcal.demo.opening.open_embedded`.
        progress: called whenever something happens.
        overwrite: as for :func:`check_folder`.
    """
    place = Path(folder)
    check_folder(place, overwrite)
    sweep(place, *(path for name in PARTS for path in [place / name, *(place / name).rglob("*")] if path.is_dir()))
    opened = _open_all(protocol, embedded)
    usable, notes = _usable(protocol, opened)
    protocol = replace(protocol, notes=(*protocol.notes, *notes))
    jobs = plan(protocol, usable)
    units = [unit for job in jobs for unit in job.units]
    fingerprints = {key: task.cases.fingerprint() for key, task in opened.items()}
    digests = {unit: unit_digest(unit, protocol, fingerprints) for unit in units}
    _check_tasks(protocol, opened)
    document = protocol.to_plain() | {
        "schema": SCHEMA,
        "hash": protocol.hash(),
        "notes": list(protocol.notes),
        "studies": list(protocol.studies),
        "cases": {task.name: len(_any(opened, task.name).cases) for task in protocol.tasks},
        "fingerprints": {f"{name}, {pooling}": found for (name, pooling), found in fingerprints.items()},
        "units": [unit.to_plain() for unit in units],
    }
    write_text(place / PROTOCOL, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    pending = [
        replace(job, units=tuple(unit for unit in job.units if not finished(place, unit, digests[unit])))
        for job in jobs
    ]
    todo = [job for job in pending if job.units]
    done = len(units) - sum(len(job.units) for job in todo)
    progress(Step(done, len(units), f"{done} of {len(units)} units are finished"))
    context = Context(protocol, place, digests, embedded)
    _run(todo, context, done, len(units), progress)
    return read_results(place)


def check_folder(place: Path, overwrite: bool = False) -> None:
    """Refuse a folder in which files of something else would be overwritten.

    Args:
        place: a folder that has results of ours, whose protocol says so, or nothing of the names that we write.
        overwrite: whether files of such names may be replaced, whoever wrote them.
    """
    if overwrite:
        return
    try:
        read_protocol(place)
    except SegcalError:
        for name in (PROTOCOL, *PARTS, *FILES):
            if (place / name).exists():
                raise InputError(
                    f"{place} holds {name}, but no {PROTOCOL} that says that it is of a benchmark. "
                    "Name a new folder, or pass overwrite=True."
                ) from None


def _run(todo: Sequence[Job], context: Context, done: int, total: int, progress: Callable[[Step], None]) -> None:
    workers = min(context.protocol.workers, len(todo))
    if workers <= 1:
        for job in todo:
            done += run_job(job, context, lambda message: progress(Step(done, total, message)))  # noqa: B023
            progress(Step(done, total, ""))
        return
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(workers, spawn, initializer=follow_parent)
    try:
        waiting: set[Future[int]] = {pool.submit(run_job, job, context) for job in todo}
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            done += sum(future.result() for future in ready)
            progress(Step(done, total, ""))
    except BaseException:
        # Whoever interrupts does not want to wait for jobs of minutes; what they had not finished is done next time.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _open_all(protocol: Protocol, embedded: Opener | None) -> dict[tuple[str, str], OpenTask]:
    poolings = dict.fromkeys(pipeline.pooling for pipeline in protocol.pipelines)
    return {
        (task.name, pooling): open_task(task, pooling, protocol.root, embedded)
        for task in protocol.tasks
        for pooling in poolings
    }


def _any(opened: dict[tuple[str, str], OpenTask], name: str) -> OpenTask:
    return next(task for (own, _), task in opened.items() if own == name)


def _usable(
    protocol: Protocol, opened: dict[tuple[str, str], OpenTask]
) -> tuple[dict[str, tuple[Pipeline, ...]], list[str]]:
    """Return the pipelines of each task; of the paper's list, those that need an offset that is gone are left out."""
    usable: dict[str, tuple[Pipeline, ...]] = {}
    notes = []
    for task in protocol.tasks:
        kept = []
        for pipeline in protocol.pipelines:
            cases = opened[task.name, pipeline.pooling].cases
            if not protocol.paper:
                cases.require_offset(pipeline.title, pipeline.translation_invariant)
            if pipeline.translation_invariant or cases.has_offset:
                kept.append(pipeline)
        usable[task.name] = tuple(kept)
        left_out = [pipeline.title for pipeline in protocol.pipelines if pipeline not in kept]
        if left_out and not task.test_only:
            notes.append(f"left out for {task.name}, whose predictions have no offset: {', '.join(left_out)}")
    return usable, notes


def _check_tasks(protocol: Protocol, opened: dict[tuple[str, str], OpenTask]) -> None:
    """Refuse splits that cannot be drawn and tests on other classes before anything is computed."""
    for task in protocol.tasks:
        mine = _any(opened, task.name).cases
        for repeat in range(0 if task.test_only else protocol.repeats):
            divide(mine, protocol.division(task), task.name, protocol.seed, repeat)
        for target in task.test_on:
            other = _any(opened, target).cases
            if other.num_classes != mine.num_classes:
                raise InputError(
                    f"task {task.name!r} has {mine.num_classes} classes, but {target!r} in its test_on has "
                    f"{other.num_classes}. Calibrators can only be tested on the classes they were fitted for."
                )
