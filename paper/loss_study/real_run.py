"""Running the study on real data: in this process, or some processes train and others measure, until the time is over.

As in :mod:`paper.loss_study.run`, a network is claimed by creating a file, a result is there or not, and the same
command goes on. Steps are recorded on a GPU. A recording that fails can leave its process without a device: that
process ends, its networks are free again, and from then on steps are taken plainly.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
import torch

from paper.loss_study.real import POST_HOC, RealStudy, RealUnit
from paper.loss_study.real_rows import LINES
from paper.loss_study.rows import FACTS, collect, read_weights, write_failure, write_row, write_weights
from paper.loss_study.run import TRAINED, claimed, measure_as_they_come, warm_up
from paper.loss_study.together import Ended, take_turns
from paper.loss_study.trainer import Steps
from segcal.parent import follow_parent

# Seconds that measuring takes: what would end later is not begun. A size that was not seen takes GROWTH times as long.
LAST = 25.0
GROWTH = 2.5
COLLECT_EVERY = 15.0
MOST_FAILURES = 3
# Says that steps are not recorded any more.
PLAIN = "plain"
DEVICE_LOST = 4
FOLDERS = ("weights", "rows", "claims")


@dataclass(frozen=True)
class RealRun:
    """One run.

    Attributes:
        study: what trains and measures.
        out: weights, rows, claims, and the lines that pages read.
        units: the networks, the most valuable first.
        trainers: how many processes train.
        at_once: how many networks each of them trains side by side.
        measurers: how many processes measure; one of each is this process.
        minutes: after which it stops.
    """

    study: RealStudy
    out: Path
    units: Sequence[RealUnit]
    trainers: int = 1
    at_once: int = 1
    measurers: int = 1
    minutes: float = float("inf")

    def row(self, unit: RealUnit) -> Path:
        """Return the file of a network's results."""
        return self.out / "rows" / f"{unit.name}.json"

    def weights(self, unit: RealUnit) -> Path:
        """Return the file of a network's weights."""
        return self.out / "weights" / f"{unit.name}.safetensors"

    def claim(self, name: str) -> Path:
        """Return the file that says that somebody works on it."""
        return self.out / "claims" / name


def run_real(run: RealRun, say: Callable[[str], None] = print) -> int:
    """Run, collect what is there, and return how many networks are missing."""
    started = time.time()
    for name in FOLDERS:
        (run.out / name).mkdir(parents=True, exist_ok=True)
    for claim in (run.out / "claims").iterdir():  # of processes that are gone
        claim.unlink()
    until = started + 60 * run.minutes
    if run.trainers == run.measurers == 1:
        train_networks(run, until)
        run.claim(TRAINED).touch()
        measure_networks(run, until)
    else:
        _run_processes(run, until, lambda text: say(f"{time.time() - started:4.0f} s {text}"))
    missing = sum(not run.row(unit).exists() for unit in run.units)
    on_gpu = torch.device(run.study.device).type == "cuda"
    facts = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "seconds": round(time.time() - started),
        "missing": missing,
        "recorded": on_gpu and not run.claim(PLAIN).exists(),
    }
    write_row(run.out / "rows", FACTS, facts)
    collect(run.out / "rows", run.out / LINES)
    return missing


def train_networks(run: RealRun, until: float) -> int:
    """Train what nobody has claimed; return an exit code."""
    current: dict[str, float] = {}
    took: dict[str, float] = {}
    on_gpu = torch.device(run.study.device).type == "cuda"
    failures = 0
    ended: Ended[RealUnit]
    for ended in take_turns(_trainings(run, until - LAST, current, took), run.at_once, run.study.device):
        began = current.pop(ended.name.name)
        if ended.trained is not None:
            failures, took[ended.name.size] = 0, time.time() - began
            write_weights(run.weights(ended.name), ended.trained.network, {})
            continue
        assert ended.error is not None
        write_failure(run.out / "rows", ended.name.name, ended.error)
        failures += 1
        if on_gpu and not run.claim(PLAIN).exists():
            run.claim(PLAIN).touch()
            for name in (ended.name.name, *current):
                run.claim(name).unlink(missing_ok=True)
            return DEVICE_LOST
        if failures == MOST_FAILURES:
            return DEVICE_LOST
    return 0


def _trainings(
    run: RealRun, until: float, current: dict[str, float], took: dict[str, float]
) -> Iterator[tuple[RealUnit, Steps]]:
    for unit in run.units:
        expected = took.get(unit.size, GROWTH * max(took.values(), default=0.0))
        if time.time() + expected >= until:
            return
        if not (run.row(unit).exists() or run.weights(unit).exists()) and claimed(run.claim(unit.name)):
            current[unit.name] = time.time()
            yield unit, run.study.train(unit, graph=not run.claim(PLAIN).exists())


def measure_networks(run: RealRun, until: float) -> None:
    """Measure networks as they come, until no more will come or no time is left."""

    def waiting() -> list[RealUnit]:
        return [unit for unit in run.units if run.weights(unit).exists() and not run.row(unit).exists()]

    def measure(unit: RealUnit) -> None:
        network = run.study.network(unit)
        read_weights(run.weights(unit), network)
        write_row(run.out / "rows", unit.name, msgspec.to_builtins(run.study.measure(unit, network)))

    measure_as_they_come(run.out, waiting, measure, until)


def _train_there(run: RealRun, until: float) -> None:
    follow_parent()
    torch.set_num_threads(1)
    sys.exit(train_networks(run, until))


def _measure_there(run: RealRun, until: float) -> None:
    follow_parent()
    torch.set_num_threads(1)
    measure_networks(run, until)


def _run_processes(run: RealRun, until: float, say: Callable[[str], None]) -> None:
    spawn = get_context("spawn").Process
    trainers = [spawn(target=_train_there, args=(run, until), daemon=True) for _ in range(run.trainers)]
    others = [spawn(target=_measure_there, args=(run, until), daemon=True) for _ in range(run.measurers)]
    others.append(spawn(target=warm_up, args=(POST_HOC,), daemon=True))  # compiles while networks are trained
    for process in [*trainers, *others]:
        process.start()
    said, spare = time.time(), 2 * run.trainers
    try:
        while time.time() < until and any(process.is_alive() for process in [*trainers, *others]):
            time.sleep(0.5)
            lost = [number for number, process in enumerate(trainers) if process.exitcode not in (None, 0)]
            for number in lost[:spare]:
                spare -= 1
                trainers[number] = spawn(target=_train_there, args=(run, until), daemon=True)
                trainers[number].start()
            if not any(process.is_alive() for process in trainers):
                run.claim(TRAINED).touch()
            if time.time() - said > COLLECT_EVERY:
                said = time.time()
                _report(run, say)
    finally:
        for process in [*trainers, *others]:
            process.terminate()
        for process in [*trainers, *others]:
            process.join(5)


def _report(run: RealRun, say: Callable[[str], None]) -> None:
    measured, trained = (sum(find(unit).exists() for unit in run.units) for find in (run.row, run.weights))
    collect(run.out / "rows", run.out / LINES)
    say(f"{measured} measured, {trained} trained, of {len(run.units)}")
