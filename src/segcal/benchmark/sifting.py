"""Finding the cases that cannot be used before anything is computed, so that a run goes on without them.

Every case of a folder is read once, with all its members. One that is broken is left out of its task for good: of every
repeat and every pipeline, so that all of them still share their cases. What was read well is remembered by the
fingerprint of the files in ``RESULTS/sifted.json`` and not read again; broken cases are tried again on the next run.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from segcal.atomic import write_text
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.run import Step
from segcal.benchmark.tasks import FolderTask, Task, open_task
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.parallel import map_cases
from segcal.documents import parse_json
from segcal.errors import InputError

SIFTED = "sifted.json"


def sift(
    protocol: Protocol,
    folder: str | Path,
    failed: Callable[[CaseError], None],
    progress: Callable[[Step], None] = lambda step: None,
) -> Protocol:
    """Return the protocol with broken cases in the `exclude` of their tasks.

    Args:
        protocol: the protocol; embedded tasks have no files, and nothing of them is read.
        folder: where results go.
        failed: told of each case that is left out; its id is TASK/CASE.
        progress: told how far it is.
    """
    record = Path(folder) / SIFTED
    known = _read(record)
    tasks: list[Task] = []
    for task in protocol.tasks:
        if not isinstance(task, FolderTask):
            tasks.append(task)
            continue
        cases = open_task(task, _pooling(protocol), protocol.root, None).cases
        again = _to_read(cases, known.get(task.name, {}))
        broken = _broken(again, protocol.workers, f"reading cases of {task.name}", progress)
        if len(broken) == len(cases):
            raise InputError(
                f"task {task.name!r} has {len(cases)} cases and none can be used, but some are needed. "
                f"The first: {next(iter(broken.values()))}"
            )
        known[task.name] = {"fingerprint": cases.fingerprint(), "broken": broken}
        for case_id, reason in broken.items():
            failed(CaseError(f"{task.name}/{case_id}", reason))
        tasks.append(replace(task, exclude=(*task.exclude, *broken)))
    write_text(record, json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    return replace(protocol, tasks=tuple(tasks))


def _to_read(cases: Cases, before: dict[str, Any]) -> Cases:
    """Return the cases to be read: all, or, if the files are those of the last run, the ones that were broken."""
    if before.get("fingerprint") != cases.fingerprint():
        return cases
    return cases.subset(case_id for case_id in before["broken"] if case_id in cases.ids)


def _broken(cases: Cases, workers: int, message: str, progress: Callable[[Step], None]) -> dict[str, str]:
    found: dict[str, str] = {}

    def note(error: CaseError) -> None:
        found[error.case_id] = error.reason

    for done, _ in enumerate(map_cases(cases, _look, workers, note)):
        progress(Step(done + len(found) + 1, len(cases), message))
    return found


def _pooling(protocol: Protocol) -> str:
    """Return a pooling of the protocol that reads every member it needs."""
    poolings = {pipeline.pooling for pipeline in protocol.pipelines}
    return min(poolings - {"single"}, default="single")


def _look(case: Case) -> None:
    if case.labels is None:
        raise CaseError(case.id, "it has no labels, but a benchmark needs them. Add its label map.")


def _read(path: Path) -> dict[str, Any]:
    try:
        known = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {name: one for name, one in known.items() if isinstance(one, dict) and isinstance(one.get("broken"), dict)}
