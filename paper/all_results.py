"""Make every folder of results that the board is written from, in one command.

    python -m paper.all_results --root DATA -o RESULTS --workers 14
    python -m paper.results_rows RESULTS

The protocols of the board are run as ``segcal benchmark`` runs them, side by side, the most valuable first. Their jobs
are cut into pieces of a few pipelines each, the longest first, so that all processes stay busy; units that two
protocols have in common are computed once. Every file is complete or absent: with ``--seconds`` it ends in time,
with tables of what is finished, and the same command goes on where it ended. Each folder has the stamp of the code.
"""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from paper.stamp import STAMP, write_stamp
from segcal.atomic import temporary, write_text
from segcal.benchmark.job import Job, run_job
from segcal.benchmark.protocol import Pipeline, Protocol, load_protocol
from segcal.benchmark.results import Unit, finished, read_results
from segcal.benchmark.run import JobRunner, run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.cases.parallel import Engine, Outcome
from segcal.demo.embedded import open_embedded
from segcal.errors import SegcalError
from segcal.parent import follow_parent
from segcal.report.paper_tables import write_tables
from segcal.studies.calibration_size import NAME as SIZES
from segcal.studies.calibration_size import size_runs
from segcal.studies.run import run_studies
from segcal.studies.study import Setting

PROTOCOLS = Path(__file__).parent / "protocols"
# In the order of what they are worth to a reader. The study of calibration sizes, which fits again, follows its rank.
RANKS = (("roads", "cardiac", "camvid"), (), ("camvid_shift",), ("more",), ("selective",), ("padding",))
NAMES = tuple(name for names in RANKS for name in names)
# What the board reads of the studies; the others are for the report.
READ = ("offsets", "flips", "domain_shift", "covariate_shift", "padding", "regions", "detection", "ensemble_size")
# Rough seconds: enough to begin with the longest, and to cut pieces that are not much longer than others.
COSTS = {"lts": 40.0, "lts_ti": 40.0, "ibts": 40.0, "conic": 20.0, "conic_class": 20.0, "selective": 40.0}
USUAL_COST, TEST_COST, READING, PIECE = 3.0, 15.0, 10.0, 90.0


class Piece(NamedTuple):
    """Some units of a job: what one process does at a time."""

    group: str
    rank: int
    cost: float
    folder: Path
    protocol: Protocol
    job: Job

    def run(self) -> None:
        """Fit and test its pipelines."""
        run_job(self.job, self.protocol, self.folder)

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(unit.pipeline.calibrator for unit in self.job.units))
        return f"{self.group}, {self.folder.name}: {self.job.name}: {names}"


class Ending(NamedTuple):
    """The end of a folder: summary, tables, and studies."""

    folder: Path
    protocol: Protocol
    studies: tuple[str, ...]

    def run(self) -> None:
        """Write them."""
        finish(self.folder, self.protocol, self.studies)

    def __str__(self) -> str:
        return f"{self.folder.name}: tables; {', '.join(self.studies) or 'no studies'}"


class Planned(Engine):
    """Takes the jobs of a benchmark that are not finished, and runs none of them."""

    partial = True

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterable[Outcome]:
        """Remember the jobs."""
        assert isinstance(function, JobRunner)
        self.jobs = [function.jobs[name] for name in ids]
        return ()


def unfinished(protocol: Protocol, folder: Path) -> list[Job]:
    """Write the protocol of a folder of results, and return the jobs that are missing there."""
    planned = Planned()
    run_benchmark(protocol, folder, engine=lambda jobs: nullcontext(planned))
    return planned.jobs


def pieces(
    group: str, rank: int, protocol: Protocol, folder: Path, known: dict[tuple[Path, str], str]
) -> tuple[list[Piece], set[str]]:
    """Return what is to be done for a folder, and the groups that do the rest: units are `known` once each."""
    found, needs = [], set()
    for job in unfinished(protocol, folder):
        own: dict[Pipeline, dict[Unit, str]] = {}
        for unit, digest in job.units.items():
            if known.setdefault((unit.path, digest), group) == group:
                own.setdefault(unit.pipeline, {})[unit] = digest
            else:
                needs.add(known[unit.path, digest])
        parts: list[tuple[float, dict[Unit, str]]] = []
        for pipeline, units in sorted(own.items(), key=lambda item: -_cost(item[0], item[1])):
            cost = _cost(pipeline, units)
            if parts and parts[-1][0] + cost <= PIECE:
                parts[-1] = (parts[-1][0] + cost, parts[-1][1] | units)
            else:
                parts.append((READING + cost, units))
        for cost, units in parts:
            pipelines = tuple(dict.fromkeys(unit.pipeline for unit in units))
            alone = replace(protocol, pipelines=pipelines)
            found.append(Piece(group, rank, cost, folder, alone, job._replace(units=units)))
    return found, needs


def _cost(pipeline: Pipeline, units: Sized) -> float:
    return COSTS.get(pipeline.calibrator, USUAL_COST) + TEST_COST * len(units)


def share_units(protocol: Protocol, folder: Path, others: Iterable[Path]) -> None:
    """Copy what is missing in a folder and finished in others, calibrators too."""
    for job in unfinished(protocol, folder):
        for unit, digest in job.units.items():
            source = next((other for other in others if finished(other, unit, digest)), None)
            if source is not None:
                if (source / unit.calibrator_path).is_dir():
                    shutil.copytree(source / unit.calibrator_path, folder / unit.calibrator_path, dirs_exist_ok=True)
                write_text(folder / unit.path, (source / unit.path).read_text("utf-8"))


def finish(folder: Path, protocol: Protocol, studies: Sequence[str]) -> None:
    """Write summary, tables and studies of what is finished."""
    results = read_results(folder)
    summary = write_summary(results)
    write_tables(summary, folder)
    run_studies(Setting(protocol, results, summary), studies)


class Group:
    """The pieces of a folder or of a study, and what follows when they and those of other groups are done."""

    def __init__(self, own: Sequence[Piece], ending: Ending, needs: set[str]) -> None:
        self.left, self.ending, self.needs = len(own), ending, needs


def plan(protocols: Mapping[str, Protocol], output: Path) -> tuple[list[Piece], dict[str, Group]]:
    """Return all that is missing, the most valuable and the longest first, and the groups that it belongs to."""
    known: dict[tuple[Path, str], str] = {}
    todo: list[Piece] = []
    groups: dict[str, Group] = {}
    for rank, names in enumerate(RANKS):
        for name in (each for each in names if each in protocols):
            protocol, folder = protocols[name], output / name
            own, needs = pieces(name, rank, protocol, folder, known)
            studies = tuple(study for study in protocol.studies or () if study in READ)
            groups[name] = Group(own, Ending(folder, protocol, studies), needs)
            todo += own
            if own or needs or not (folder / STAMP).is_file():
                write_stamp(folder)
        for name in (each for each in names if each in protocols and SIZES in (protocols[each].studies or ())):
            protocol, folder, key = protocols[name], output / name, f"{name} {SIZES}"
            own = [
                piece
                for task in protocol.tasks
                for _, alone, place in size_runs(protocol, task, folder)
                for piece in pieces(key, rank + 1, alone, place, known)[0]
            ]
            groups[key] = Group(own, Ending(folder, protocol, (SIZES,)), {name})
            todo += own
    return sorted(todo, key=lambda piece: (piece.rank, -piece.cost)), groups


class Schedule:
    """What is to be done, what is under way, and what has ended or failed."""

    def __init__(self, protocols: Mapping[str, Protocol], output: Path) -> None:
        self.todo, self.groups = plan(protocols, output)
        self._folders = [output / name for name in protocols]
        self.ended: set[str] = set()
        self._stopped: set[str] = set()  # under way, ended or failed

    def next(self) -> tuple[str, "Piece | Ending"] | None:
        """Return an end that can be written, or the next piece; None if all is under way or waits."""
        for key, group in self.groups.items():
            if not group.left and group.needs <= self.ended and key not in self._stopped:
                self._stopped.add(key)
                share_units(group.ending.protocol, group.ending.folder, self._folders)
                return key, group.ending
        return (self.todo[0].group, self.todo.pop(0)) if self.todo else None

    def done(self, key: str, what: "Piece | Ending", future: Future[float]) -> None:
        """Take note of what ended, or failed: then the rest is still worth having."""
        error = future.exception()
        if error is not None:
            print(f"failed  {what}: {type(error).__name__}: {error}", flush=True)
            return
        print(f"{future.result():7.1f} s  {what}", flush=True)
        if isinstance(what, Piece):
            self.groups[key].left -= 1
        else:
            self.ended.add(key)


def run_all(protocols: Mapping[str, Protocol], output: Path, workers: int, seconds: float) -> list[str]:
    """Run protocols for at most so many seconds; return the groups that are not finished then."""
    end = time.monotonic() + seconds
    schedule = Schedule(protocols, output)
    print(f"{len(schedule.todo)} pieces of {len(schedule.groups)} groups", flush=True)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=follow_parent)
    running: dict[Future[float], tuple[str, Piece | Ending]] = {}
    try:
        while time.monotonic() < end:
            while len(running) < workers and (following := schedule.next()) is not None:
                running[pool.submit(timed, following[1])] = following
            if not running:
                break
            left = max(0.0, end - time.monotonic())
            for future in wait(running, None if math.isinf(left) else left, FIRST_COMPLETED)[0]:
                schedule.done(*running.pop(future), future)
    finally:
        for process in list(pool._processes.values()):  # what would run longer than allowed is ended
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
    for key in (name for name in protocols if name not in schedule.ended and (output / name / "units").is_dir()):
        share_units(protocols[key], output / key, [output / name for name in protocols])
        try:
            finish(output / key, protocols[key], ())
        except SegcalError as error:  # nothing has all its repeats, or units are of an earlier run
            print(f"no summary of {key}: {error}", flush=True)
    return [key for key in schedule.groups if key not in schedule.ended]


def timed(what: Piece | Ending) -> float:
    """Do it, and return how many seconds of the processor it took."""
    begun = time.process_time()
    what.run()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where relative paths of the protocols begin")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULTS")
    parser.add_argument("--protocols", type=Path, default=PROTOCOLS, help="folder of the protocols")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="some of the protocols")
    parser.add_argument("--workers", type=int, default=1, help="how many processes, each of one thread")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end in time, and go on in the next call")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    with temporary(args.output) as cache:  # predictions of embedded tasks
        embedded = partial(open_embedded, cache=cache)
        protocols = {
            name: replace(load_protocol(args.protocols / f"{name}.toml", args.root), embedded=embedded)
            for name in args.only
        }
        left = run_all(protocols, args.output, args.workers, args.seconds)
    print(f"not finished: {', '.join(left)}" if left else "finished")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
