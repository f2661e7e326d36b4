"""Units of work: one pipeline, fitted on one task in one repeat, and tested there or on another task.

A unit is one file of results. Its digest covers what decides its numbers and nothing else: not the other pipelines,
not the place of the files, not the bootstrap. So a protocol can grow by a pipeline, a repeat or a task, and only what
is new is computed.

Units that share their cases are one job: a task in a repeat with a pooling. A job reads its voxels once, fits all its
pipelines, and tests all of them on a case while it is in memory.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, to_builtins

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol, digest
from segcal.benchmark.tasks import FolderTask, Task, task_plain
from segcal.cases import Cases, Split
from segcal.errors import InputError
from segcal.fitting import FitConfig

SCHEMA = 1
PLACES = ("labels", "images", "properties")


class Unit(Struct, frozen=True, kw_only=True):
    """One file of results: a pipeline fitted on a task in a repeat, and tested there or on the task `test_on`."""

    task: str
    repeat: int
    test_on: str = ""
    pipeline: Pipeline

    @property
    def path(self) -> Path:
        """Return its file, relative to the folder of results."""
        target = f"@{self.test_on}" if self.test_on else ""
        return Path("units", self.task, f"repeat_{self.repeat}", f"{self._stem}{target}.jsonl")

    @property
    def calibrator_path(self) -> Path:
        """Return the folder of its fitted calibrator, relative to the folder of results."""
        return Path("calibrators", self.task, f"repeat_{self.repeat}", self._stem)

    @property
    def _stem(self) -> str:
        options = f"-{digest(self.pipeline.options)[:8]}" if self.pipeline.options else ""
        return f"{self.pipeline.calibrator}-{self.pipeline.pooling}{options}"


class Job(NamedTuple):
    """Units of one task, repeat and pooling, each with its digest."""

    task: Task
    repeat: int
    pooling: str
    units: dict[Unit, str]


def unit_digest(unit: Unit, protocol: Protocol, fingerprints: Mapping[tuple[str, str], str]) -> str:
    """Return the digest of what decides a unit's numbers; `fingerprints` are of the cases by task and pooling."""
    names = [unit.task, *([unit.test_on] if unit.test_on else [])]
    usual = FitConfig().to_dict()
    plain = {
        "schema": SCHEMA,
        "segcal": version("segcal"),
        "unit": to_builtins(unit),
        "tasks": [_deciding(protocol, protocol.task(name)) for name in names],
        "cases": [fingerprints[name, unit.pipeline.pooling] for name in names],
        "seed": protocol.seed,
        # What is not as usual, so that an option that is added later leaves finished units alone.
        "fit": {key: value for key, value in protocol.fit.to_dict().items() if value != usual[key]},
        "metrics": list(protocol.metrics),
    }
    return digest(plain)


def divide(protocol: Protocol, task: Task, cases: Cases, repeat: int) -> Split:
    """Divide the cases of a task, by groups; the same for every pipeline of a repeat, another one in each repeat."""
    division = protocol.division(task)
    wanted = division.cal + division.val + (division.test or 1)
    if wanted > len(cases):
        raise InputError(
            f"task {task.name!r} has {len(cases)} cases, but {division.cal} for calibration, {division.val} for "
            f"validation and at least {division.test or 1} for the test are asked for. Change its split."
        )
    first, second = (int(number) for number in np.random.SeedSequence([protocol.seed, repeat]).generate_state(2))
    split = cases.split(division.cal, division.val, first)
    if division.val and not len(split.val):
        raise InputError(
            f"task {task.name!r} has val = {division.val}, but no whole group of cases fits into it. "
            "Groups are kept whole: ask for more validation cases."
        )
    if division.fitted is not None:
        pool = cases.subset((*split.cal.ids, *split.val.ids))
        again = pool.split(min(division.fitted, len(pool) - 1), 0, first)
        split = split._replace(cal=again.cal, val=again.test)
    if division.test is None or division.test >= len(split.test):
        return split
    return split._replace(test=split.test.split(division.test, 0, second).cal)


def cases_elsewhere(source: Split, every: Cases, target: Cases, own: Split | None) -> Cases:
    """Return the cases of another task, `target`, that a calibrator may be tested on.

    Where the other task has the same cases as the one that was fitted on (`every`, divided as `source`), or some of
    them (a corrupted copy), these are the source's test cases. Otherwise they are the other task's own test cases, or
    all it has if nothing is fitted on it (`own` is None), without those that had part in the fit.
    """
    seen = {*source.cal.ids, *source.val.ids}
    ids = target.ids if own is None else own.test.ids
    unseen = [case_id for case_id in ids if case_id not in seen]
    if set(every.ids) <= set(target.ids) or set(target.ids) <= set(every.ids):
        unseen = [case_id for case_id in target.ids if case_id in source.test.ids]
    if not unseen:
        raise InputError(
            f"test_on has {len(ids)} cases, but all of them had part in the fit, and at least one is needed that had "
            "not. Ask for fewer calibration and validation cases."
        )
    return target.subset(unseen)


def plan(
    protocol: Protocol, usable: Mapping[str, Sequence[Pipeline]], fingerprints: Mapping[tuple[str, str], str]
) -> list[Job]:
    """Return the jobs of a protocol, in the order of its tasks.

    `usable` are the pipelines that each task can have, `fingerprints` are of its cases with each pooling.
    """
    jobs = []
    for task in protocol.tasks:
        pipelines = () if task.test_only else usable[task.name]
        for repeat in range(protocol.repeats):
            for pooling in dict.fromkeys(pipeline.pooling for pipeline in pipelines):
                units = [
                    Unit(task=task.name, repeat=repeat, test_on=target, pipeline=pipeline)
                    for pipeline in pipelines
                    if pipeline.pooling == pooling
                    for target in ("", *task.test_on)
                ]
                digests = {unit: unit_digest(unit, protocol, fingerprints) for unit in units}
                jobs.append(Job(task, repeat, pooling, digests))
    return jobs


def _deciding(protocol: Protocol, task: Task) -> dict[str, Any]:
    """Return what of a task decides numbers: not where its files are, and not what else is tested."""
    plain = task_plain(task) | {"test_on": []}
    del plain["exclude"]  # the fingerprint of the cases tells
    split = to_builtins(protocol.division(task))
    plain["split"] = {key: value for key, value in split.items() if key != "fitted" or value is not None}
    if isinstance(task, FolderTask):
        plain["options"] = [[key, key in PLACES or value] for key, value in plain["options"]]
        plain |= {"members": len(task.members), "labels": True}
    return plain
