"""Finding the cases that cannot be used before anything is computed, so that a run goes on without them.

Every case of a folder is read once, with all its members. One that is broken is left out of its task for good: of every
repeat and every pipeline, so that all of them still share their cases. What was read well is remembered by the
fingerprint of the files in ``RESULTS/sifted.json`` and not read again; broken cases are tried again on the next run.
"""

import json
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from segcal.atomic import write_text
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.run import Progress, Step
from segcal.benchmark.tasks import FolderTask
from segcal.cases.base import Case, CaseError
from segcal.cases.parallel import map_cases
from segcal.documents import parse_json
from segcal.errors import InputError

SIFTED = "sifted.json"


class Sifted(Struct, frozen=True):
    """The files of a task when they were read: their fingerprint, and what is wrong with each broken case."""

    fingerprint: str
    broken: dict[str, str]


def exclude_broken(
    protocol: Protocol,
    folder: str | Path,
    failed: Callable[[CaseError], None],
    progress: Progress = lambda step: None,
) -> Protocol:
    """Return the protocol with broken cases in the `exclude` of their tasks.

    Args:
        protocol: the protocol; embedded tasks have no files, and nothing of them is read.
        folder: where results go.
        failed: told of each case that is left out; its id is TASK/CASE.
        progress: told how far it is.
    """
    record = Path(folder) / SIFTED
    known = read_sifted(record)
    # A pooling of the protocol that reads every member it needs.
    pooling = min({pipeline.pooling for pipeline in protocol.pipelines} - {"single"}, default="single")
    tasks = list(protocol.tasks)
    for number, task in enumerate(tasks):
        if not isinstance(task, FolderTask):
            continue
        cases = protocol.open(task, pooling).cases
        before = known.get(task.name, Sifted("", {}))
        same = before.fingerprint == cases.fingerprint()  # then only what was broken is read again
        unread = cases.subset(each for each in before.broken if each in cases.ids) if same else cases
        errors: list[CaseError] = []
        for done, _ in enumerate(map_cases(unread, _look, protocol.workers, errors.append)):
            progress(Step(done + len(errors) + 1, len(unread), f"reading cases of {task.name}"))
        broken = {error.case_id: error.reason for error in errors}
        if len(broken) == len(cases):
            raise InputError(
                f"task {task.name!r} has {len(cases)} cases and none can be used, but some are needed. "
                f"The first: {next(iter(broken.values()))}"
            )
        known[task.name] = Sifted(cases.fingerprint(), broken)
        for case_id, reason in broken.items():
            failed(CaseError(f"{task.name}/{case_id}", reason))
        tasks[number] = replace(task, exclude=(*task.exclude, *broken))
    write_text(record, json.dumps(to_builtins(known), indent=1, ensure_ascii=False) + "\n")
    return replace(protocol, tasks=tuple(tasks))


def read_sifted(path: Path) -> dict[str, Sifted]:
    """Return what is known of each task; nothing where the record cannot be read."""
    try:
        return convert(parse_json(path.read_text("utf-8")), dict[str, Sifted])
    except (OSError, ValueError):
        return {}


def _look(case: Case) -> None:
    if case.labels is None:
        raise CaseError(case.id, "it has no labels, but a benchmark needs them. Add its label map.")
