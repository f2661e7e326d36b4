"""Running a protocol: what is finished is skipped, the rest is done in jobs, and every file is complete or absent.

``RESULTS/protocol.json`` holds the resolved protocol and the list of its units, ``RESULTS/units`` one file per unit
(:mod:`segcal.benchmark.results`), ``RESULTS/calibrators`` the fitted calibrators, as :func:`segcal.save` writes them.
Killed at any point and run again, a benchmark ends with the same bytes.

Cases that cannot be used are found before anything is computed, so a run goes on without them. Every case of a folder
is read once, with all its members. A broken one is left out of its task in every repeat and every pipeline, so all of
them still share their cases. What was read well is remembered by the fingerprint of the files in
``RESULTS/checked.json`` and not read again. Broken cases are tried again on the next run.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from segcal.atomic import remove_leftovers
from segcal.benchmark.job import Job, benchmark_metrics, plan, run_job
from segcal.benchmark.protocol import Pipeline, Protocol, digest
from segcal.benchmark.results import PROTOCOL, SCHEMA, Results, finished, read_protocol, read_results
from segcal.benchmark.tasks import in_keys
from segcal.calibrators.local_temperature import SeesNeighbours
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.parallel import Engine, map_cases, map_ids, process_context
from segcal.documents import parse_json, read_text, write_json
from segcal.errors import InputError, SegcalError
from segcal.parent import follow_parent

# The folders and the files of a folder of results.
PARTS = ("units", "calibrators", "tables", "studies")
CHECKED = "checked.json"
FILES = ("summary.json", "report.html", "verdict.json")


class Step(NamedTuple):
    """The progress of a run: units (or others) that are done, all of them, and what is being done."""

    done: int
    total: int
    message: str


Progress = Callable[[Step], None]


class JobRunner:
    """The jobs of a protocol by name, as an engine sees cases; called, it runs a job and returns its files.

    Attributes:
        ids: the names of all jobs.
        jobs: by name, what is to be done of them.
    """

    def __init__(self, jobs: Sequence[Job], todo: Sequence[Job], protocol: Protocol, folder: Path) -> None:
        self._digests = {job.name: digest(sorted(job.units.values())) for job in jobs}
        self.ids, self.jobs = tuple(self._digests), {job.name: job for job in todo}
        self._protocol, self._folder = protocol, folder

    def identity(self, name: str) -> str:
        """Return the digest of what decides the results of a job."""
        return self._digests[name]

    def __call__(self, name: str) -> tuple[Path, ...]:
        """Run one job."""
        run_job(self.jobs[name], self._protocol, self._folder)
        return tuple(path for path in self.places(name) if path.exists())

    def places(self, name: str) -> list[Path]:
        """Return where the results of a job go."""
        paths = dict.fromkeys(path for unit in self.jobs[name].units for path in (unit.path, unit.calibrator_path))
        return [self._folder / path for path in paths]


# Gives what runs the jobs of a protocol, where that is not this machine alone.
JobEngine: TypeAlias = Callable[[JobRunner], AbstractContextManager[Engine]]


def run_benchmark(
    protocol: Protocol,
    folder: str | Path,
    progress: Progress = lambda step: None,
    overwrite: bool = False,
    engine: JobEngine | None = None,
) -> Results:
    """Run a protocol and return its results; what is finished in the folder is not done again.

    With an `engine` that works on some of the jobs alone, the results are of those.
    """
    place = Path(folder)
    check_folder(place, overwrite)
    remove_leftovers(
        place, *(path for name in PARTS for path in [place / name, *(place / name).rglob("*")] if path.is_dir())
    )
    poolings = dict.fromkeys(pipeline.pooling for pipeline in protocol.pipelines)
    opened = {task.name: {how: protocol.open(task, how).cases for how in poolings} for task in protocol.tasks}
    usable, notes = _usable(protocol, opened)
    protocol = replace(protocol, notes=(*protocol.notes, *notes))
    fingerprints = {(name, how): cases.fingerprint() for name, by in opened.items() for how, cases in by.items()}
    jobs = plan(protocol, usable, fingerprints)
    units = [unit for job in jobs for unit in job.units]
    any_cases = {name: next(iter(by.values())) for name, by in opened.items()}
    _check_tasks(protocol, any_cases)
    document = protocol.to_plain() | {
        "schema": SCHEMA,
        "hash": protocol.hash(),
        "notes": list(protocol.notes),
        "studies": list(protocol.studies or ()),
        "compare": to_builtins(protocol.compare),
        "cases": {name: len(cases) for name, cases in any_cases.items()},
        "fingerprints": {f"{name}, {pooling}": found for (name, pooling), found in fingerprints.items()},
        "units": to_builtins(units),
    }
    write_json(place / PROTOCOL, document)
    todo = []
    for job in jobs:
        missing = {one: found for one, found in job.units.items() if not finished(place, one, found, overwrite)}
        todo += [job._replace(units=missing)] if missing else []
    done = len(units) - sum(len(job.units) for job in todo)
    progress(Step(done, len(units), f"{done} of {len(units)} units are finished"))
    if engine is None:
        _run(todo, protocol, place, Step(done, len(units), ""), progress)
        return read_results(place)
    runner = JobRunner(jobs, todo, protocol, place)
    with engine(runner) as runs:
        for name, _ in map_ids(list(runner.jobs), runner, runs):
            done += len(runner.jobs[name].units)
            progress(Step(done, len(units), name))
    return read_results(place)


class CheckedTask(Struct, frozen=True):
    """The files of a task when they were read: their fingerprint, and what is wrong with each broken case."""

    fingerprint: str
    broken: dict[str, str]


def exclude_broken(
    protocol: Protocol, folder: str | Path, failed: Callable[[CaseError], None], progress: Progress = lambda step: None
) -> Protocol:
    """Return the protocol with broken cases in the `exclude` of their tasks.

    `failed` is told of each case that is left out; its id is TASK/CASE. Embedded tasks have no files to read.
    """
    record = Path(folder) / CHECKED
    known = read_checked(record)
    # A pooling of the protocol that reads every member it needs.
    pooling = min({pipeline.pooling for pipeline in protocol.pipelines} - {"single"}, default="single")
    tasks = list(protocol.tasks)
    for number, task in enumerate(tasks):
        if not task.folders:
            continue
        cases = protocol.open(task, pooling).cases
        before = known.get(task.name, CheckedTask("", {}))
        same = before.fingerprint == cases.fingerprint()  # then only what was broken is read again
        unread = cases.subset(each for each in before.broken if each in cases.ids) if same else cases
        errors: list[CaseError] = []
        for done, _ in enumerate(map_cases(unread, _look, protocol.workers, errors.append)):
            progress(Step(done + len(errors) + 1, len(unread), f"reading cases of {task.name}"))
        broken = {error.case_id: in_keys(error.reason) for error in errors}
        if len(broken) == len(cases):
            raise InputError(
                f"task {task.name!r} has {len(cases)} cases and none can be used, but some are needed. "
                f"The first: {next(iter(broken.values()))}"
            )
        known[task.name] = CheckedTask(cases.fingerprint(), broken)
        for case_id, reason in broken.items():
            failed(CaseError(f"{task.name}/{case_id}", reason))
        tasks[number] = replace(task, exclude=(*task.exclude, *broken))
    write_json(record, to_builtins(known))
    return replace(protocol, tasks=tuple(tasks))


def read_checked(path: Path) -> dict[str, CheckedTask]:
    """Return what is known of each task; nothing where the record cannot be read."""
    try:
        return convert(parse_json(read_text(path)), dict[str, CheckedTask])
    except (InputError, ValueError):
        return {}


def _look(case: Case) -> None:
    if case.labels is None:
        raise CaseError(case.id, "it has no labels, but a benchmark needs them. Add its label map.")


def check_folder(place: Path, overwrite: bool = False) -> None:
    """Refuse a folder that cannot be written to, or in which files of something else would be overwritten.

    Results of ours have a protocol that says so. With `overwrite` files may be replaced, whoever wrote them.
    """
    for path in (place, *(place / name for name in PARTS)):
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise InputError(f"{there} cannot be written to, but results go there. Name another folder.")
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


def _run(todo: Sequence[Job], protocol: Protocol, place: Path, step: Step, progress: Progress) -> None:
    done, total, _ = step
    workers = min(protocol.workers, len(todo))
    if workers <= 1:
        for job in todo:
            done += run_job(job, protocol, place, lambda message: progress(Step(done, total, message)))  # noqa: B023
            progress(Step(done, total, "units finished"))
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, process_context(), initializer=follow_parent)
    try:
        waiting: set[Future[int]] = {pool.submit(run_job, job, protocol, place) for job in todo}
        while waiting:
            ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            done += sum(future.result() for future in ready)
            progress(Step(done, total, "units finished"))
    except BaseException as error:
        # Whoever interrupts does not want to wait for jobs of minutes; what they had not finished is done next time.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a worker process ended while jobs were under way, but nobody asked it to. The machine may have run "
                "out of memory: use fewer workers. The same call goes on from here."
            ) from None
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _usable(
    protocol: Protocol, opened: Mapping[str, Mapping[str, Cases]]
) -> tuple[dict[str, list[Pipeline]], list[str]]:
    """Return the pipelines of each task; of the paper's list, those that its cases cannot have are left out."""
    usable: dict[str, list[Pipeline]] = {}
    notes = []
    for task in protocol.tasks:
        found: dict[str, list[Pipeline]] = {}
        for pipeline in protocol.pipelines:
            cases, made, why = opened[task.name][pipeline.pooling], pipeline.make(2), ""
            if not made.translation_invariant and not cases.has_offset:
                why = "predictions have no offset"
            elif isinstance(made, SeesNeighbours) and cases.raters is not None:
                why = "labels are of several raters"
            if why and not protocol.paper:
                cases.require_offset(pipeline.title, made.translation_invariant)
                cases.require_one_rater(f"calibrator {pipeline.title!r}")
            found.setdefault(why, []).append(pipeline)
        usable[task.name] = found.pop("", [])
        for why, left in {} if task.test_only else found.items():
            notes.append(f"left out for {task.name}, whose {why}: {', '.join(each.title for each in left)}")
    return usable, notes


def _check_tasks(protocol: Protocol, opened: Mapping[str, Cases]) -> None:
    """Refuse splits that cannot be drawn and tests on other classes before anything is computed."""
    for task in protocol.tasks:
        mine = opened[task.name]
        benchmark_metrics(protocol.metrics, True, mine.raters)  # some are not for several raters
        for repeat in range(0 if task.test_only else protocol.repeats):
            protocol.divide(task, mine, repeat)
        for target in task.test_on:
            if opened[target].num_classes != mine.num_classes:
                raise InputError(
                    f"task {task.name!r} has {mine.num_classes} classes, but {target!r} in its test_on has "
                    f"{opened[target].num_classes}. Calibrators can only be tested on the classes they were fitted for."
                )
