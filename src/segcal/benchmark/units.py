"""Units of work: one pipeline, fitted on one task in one repeat, and tested there or on another task.

A unit is one file of results. Its digest covers what decides its numbers and nothing else: not the other pipelines,
not the place of the files, not the bootstrap. So a protocol can grow by a pipeline, a repeat or a task, and only what
is new is computed.

Units that share their cases are one job: a task in a repeat with a pooling. A job reads its voxels once, fits all its
pipelines, and tests all of them on a case while it is in memory.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol, digest
from segcal.benchmark.tasks import Division, FolderTask, Task
from segcal.cases import Cases, Split
from segcal.errors import InputError
from segcal.fitting import FitConfig

SCHEMA = 1


@dataclass(frozen=True)
class Unit:
    """One file of results.

    Attributes:
        task: the task that the pipeline is fitted on.
        repeat: the number of the repeat.
        pipeline: the pipeline.
        test_on: the task that it is tested on, where that is another; "" for its own.
    """

    task: str
    repeat: int
    pipeline: Pipeline
    test_on: str = ""

    @property
    def path(self) -> Path:
        """Return its file, relative to the folder of results."""
        options = f"-{digest(dict(self.pipeline.options))[:8]}" if self.pipeline.options else ""
        target = f"@{self.test_on}" if self.test_on else ""
        name = f"{self.pipeline.calibrator}-{self.pipeline.pooling}{options}{target}.jsonl"
        return Path("units") / self.task / f"repeat_{self.repeat}" / name

    def to_plain(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"task": self.task, "repeat": self.repeat, "test_on": self.test_on}
        return plain | {"pipeline": self.pipeline.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Unit":
        """Return the unit that :meth:`to_plain` described."""
        return cls(plain["task"], plain["repeat"], Pipeline.from_plain(plain["pipeline"]), plain["test_on"])


@dataclass(frozen=True)
class Job:
    """Units of one task, repeat and pooling."""

    task: str
    repeat: int
    pooling: str
    units: tuple[Unit, ...]


def unit_digest(unit: Unit, protocol: Protocol, fingerprints: Mapping[tuple[str, str], str]) -> str:
    """Return the digest of what decides a unit's numbers.

    Args:
        unit: the unit.
        protocol: its protocol.
        fingerprints: of the cases of each task and pooling.
    """
    names = [unit.task, *([unit.test_on] if unit.test_on else [])]
    plain = {
        "schema": SCHEMA,
        "segcal": version("segcal"),
        "unit": unit.to_plain(),
        "tasks": [_deciding(protocol, protocol.task(name)) for name in names],
        "cases": [fingerprints[name, unit.pipeline.pooling] for name in names],
        "seed": protocol.seed,
        "fit": _changed(protocol.fit.to_dict(), FitConfig().to_dict()),
        "metrics": list(protocol.metrics),
    }
    return digest(plain)


def divide(cases: Cases, division: Division, name: str, seed: int, repeat: int) -> Split:
    """Divide the cases of a task; the same for every pipeline of a repeat.

    Args:
        cases: all cases of the task.
        division: how many go where; groups stay together.
        name: of the task, for messages.
        seed: of the protocol.
        repeat: the number of the repeat; each has a division of its own.
    """
    wanted = division.cal + division.val + (division.test or 1)
    if wanted > len(cases):
        raise InputError(
            f"task {name!r} has {len(cases)} cases, but {division.cal} for calibration, {division.val} for validation "
            f"and at least {division.test or 1} for the test are asked for. Change its split."
        )
    first, second = (int(number) for number in np.random.SeedSequence([seed, repeat]).generate_state(2))
    split = cases.split(division.cal, division.val, first)
    if division.val and not len(split.val):
        raise InputError(
            f"task {name!r} has val = {division.val}, but no whole group of cases fits into it. "
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
    """Return the cases of another task that a calibrator may be tested on.

    Where the other task has the same cases, or some of them (a corrupted copy), these are the source's test cases.
    Otherwise they are the other task's own test cases, or all it has if nothing is fitted on it, without those that had
    part in the fit.

    Args:
        source: the division of the task that was fitted on.
        every: all cases of that task.
        target: all cases of the other task.
        own: the other task's own division, or None.
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


def plan(protocol: Protocol, usable: Mapping[str, tuple[Pipeline, ...]]) -> list[Job]:
    """Return the jobs of a protocol, in the order of its tasks.

    Args:
        protocol: the protocol.
        usable: the pipelines that each task can have.
    """
    jobs = []
    for task in protocol.tasks:
        pipelines = () if task.test_only else usable[task.name]
        for repeat in range(protocol.repeats):
            for pooling in dict.fromkeys(pipeline.pooling for pipeline in pipelines):
                units = tuple(
                    Unit(task.name, repeat, pipeline, target)
                    for pipeline in pipelines
                    if pipeline.pooling == pooling
                    for target in ("", *task.test_on)
                )
                jobs.append(Job(task.name, repeat, pooling, units))
    return jobs


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not as usual, so that an option that is added later leaves finished units alone."""
    return {key: value for key, value in values.items() if value != usual[key]}


def _deciding(protocol: Protocol, task: Task) -> dict[str, Any]:
    """Return what of a task decides numbers: not where its files are, and not what else is tested."""
    bare = replace(task, test_on=(), split=protocol.division(task))
    plain = asdict(bare)
    del plain["exclude"]  # the fingerprint of the cases tells
    plain["split"] = protocol.division(task).to_plain()
    if isinstance(task, FolderTask):
        places = {"labels", "images", "properties"}
        plain["options"] = [[key, key in places or value] for key, value in task.options]
        plain |= {"members": len(task.members), "labels": True}
    return plain
