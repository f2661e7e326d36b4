"""The kinds of trials, and one trial: a fresh box, its steps, the judge after each."""

import gc
import io
import json
import os
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.campaign.commands import WARM
from benchmarks.campaign.judge import judge, look, maker, worst
from benchmarks.campaign.kinds_calls import calls
from benchmarks.campaign.kinds_files import Trial, documents, files, numbers, options
from benchmarks.campaign.kinds_places import names, paths, planted, remote
from benchmarks.campaign.kinds_runs import kills, merge, together
from benchmarks.campaign.sandbox import Box
from benchmarks.campaign.watch import WALL_SECONDS, Step, run_step
from segcal.cli import main

# Every kind with its weight: of a hundred trials about so many are of it.
KINDS: dict[str, tuple[Callable[[random.Random, Box], Trial], int]] = {
    "files": (files, 22),
    "documents": (documents, 14),
    "numbers": (numbers, 8),
    "options": (options, 6),
    "paths": (paths, 11),
    "names": (names, 4),
    "planted": (planted, 9),
    "remote": (remote, 4),
    "merge": (merge, 6),
    "kills": (kills, 6),
    "together": (together, 2),
    "calls": (calls, 8),
}


@dataclass(frozen=True)
class Found:
    """What a trial found: its kind and number, the step in words, and the faults, the worst first."""

    kind: str
    number: int
    words: str
    faults: tuple[tuple[str, str], ...]


def plan(trials: int, only: str | None = None, first: int = 0) -> list[tuple[str, int]]:
    """Return the kind and the number of every trial: every kind in proportion to its weight, at least once.

    >>> plan(2, only="files", first=7)
    [('files', 7), ('files', 8)]
    """
    if only is not None:
        return [(only, number) for number in range(first, first + trials)]
    total = sum(weight for _, weight in KINDS.values())
    return [
        (kind, number) for kind, (_, weight) in KINDS.items() for number in range(max(1, -(-trials * weight // total)))
    ]


def run_trial(box: Box, seed: int, kind: str, number: int, seconds: float = WALL_SECONDS) -> Found:
    """Run one trial, which seed, kind and number decide."""
    box.reset()
    trial = KINDS[kind][0](random.Random(f"{seed} {kind} {number}"), box)
    faults: list[tuple[str, str]] = []
    shown: list[str] = []
    step = next(trial, None)
    while step is not None:
        before = look(box.root)
        outcome = run_step(step, box.root, seconds)
        after = look(box.root)
        faults += judge(step, box.root, before, after, outcome, box.own)
        shown.append(step.words())
        _remember(step, box, before, after)
        try:
            step = trial.send(outcome)
        except StopIteration:
            step = None
    return Found(kind, number, " ; ".join(shown), tuple(worst(faults + box.faults)))


def _remember(step: Step, box: Box, before: dict[str, str], after: dict[str, str]) -> None:
    """Keep which command made what is new, or replaced what it had made."""
    if not callable(step.run):
        box.own |= {path: maker(step) for path in after if path not in before}


def warm(box: Box) -> None:
    """Run some commands in this process, from which trials are forked: what is compiled is then loaded once for all."""
    here = Path.cwd()
    os.chdir(box.work)
    for words in WARM:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
            main(words)
    os.chdir(here)


def work(place: Path, seed: int, trials: list[tuple[str, int]], results: int) -> None:
    """Run trials in a box of one's own, and write what each found as a line to a descriptor."""
    box = Box(place)
    box.build()
    box.reset()
    warm(box)
    gc.freeze()
    for kind, number in trials:
        try:
            found = run_trial(box, seed, kind, number)
        except Exception as error:  # a trial that cannot be made is no trial that found nothing
            found = Found(kind, number, "", (("broken", f"{type(error).__name__}: {error}"),))
        line = json.dumps([found.kind, found.number, found.words, found.faults])
        os.write(results, line.encode() + b"\n")
