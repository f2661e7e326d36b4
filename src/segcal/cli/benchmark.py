"""``segcal benchmark`` and ``segcal demo``: the paper's protocol, on the user's cases or on those of the package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from segcal.atomic import temporary
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.run import JobRunner
from segcal.cases.parallel import Engine
from segcal.cli import arguments as shared
from segcal.cli.call import Call, check_output
from segcal.cli.commands import Command, Role, argument, at_least_one, device, flag
from segcal.cli.console import step_bar
from segcal.demo.embedded import open_embedded
from segcal.demo.story import full_plan, quick_plan, tell_story
from segcal.errors import InputError
from segcal.kernels.loops import was_compiled
from segcal.kernels.reliability_numba import count_block
from segcal.report.paper_tables import FOLDER, task_table
from segcal.studies.page import PAGE, write_page_of
from segcal.studies.run import run as run_protocol
from segcal.studies.run import run_units
from segcal.summary import SUMMARY
from segcal.target import claim

# Each process of a demonstration needs about half a gigabyte.
MOST_WORKERS = 4


def _benchmark(call: Call) -> int:
    args = call.args
    protocol = load_protocol(args.protocol, args.root)
    read = [protocol.root / name for task in protocol.tasks for name in task.folders]
    check_output(args.output, True, read, read)
    # Predictions of embedded tasks are kept while it runs.
    with claim(args.output), step_bar("benchmark", args.quiet) as show, temporary(args.output) as cache:
        embedded, workers = partial(open_embedded, cache=cache), args.workers or protocol.workers
        protocol, args.workers = replace(protocol, device=args.device, workers=workers, embedded=embedded), workers
        divided = args.merged or args.part_id is not None or args.engine != "local"
        engine = partial(_engine, call) if divided else None
        given = (protocol, args.output, show, call.output.failed, args.overwrite, engine)
        if args.part_id is not None and run_units(*given):
            return call.end_of_part(counted=False)
        finished = run_protocol(*given)
        write_page_of(finished, overwrite=args.overwrite)
    summary, folder = finished.setting.summary, args.output
    paths = sorted((folder / FOLDER).iterdir())
    call.say(*(task_table(summary, task.name, intervals=False) for task in summary.tasks))
    each = ", case by case in every repeat" if summary.repeats > 1 else ""
    call.say(f"Matched comparisons{each}:", *(f"- {each.sentence}" for each in summary.comparisons))
    call.say(*(f"note: {note}" for note in summary.notes))
    call.say(*(f"no {name} study: {reason}" for name, reason in finished.left_out.items()))
    call.say(f"results {folder}, summary {folder / SUMMARY}, {len(paths)} files in {folder / FOLDER}")
    call.say(f"report {folder / PAGE}: open it in a browser")
    return call.end({
        "results": str(folder), "hash": summary.hash, "notes": list(summary.notes),
        "rows": to_builtins(summary.results), "comparisons": to_builtins(summary.comparisons),
        "studies": list(finished.studies), "studies_left_out": finished.left_out,
        "tables": [str(path) for path in paths], "report": str(folder / PAGE),
    })  # fmt: skip


@contextmanager
def _engine(call: Call, jobs: JobRunner) -> Iterator[Engine]:
    with call.engine(jobs):
        assert isinstance(call.workers, Engine)
        yield call.workers


BENCHMARK = Command(
    _benchmark,
    None,
    "Fit and test every pipeline of a protocol, and run its studies. What is finished is skipped.",
    "example: segcal benchmark protocol.toml -o results/ --workers 2",
    argument("protocol", "see docs/protocol.md", Role.READ, metavar="PROTOCOL.toml"),
    shared.target("RESULTS", "folder for the results"),
    argument("--root", "where its relative paths begin; default: beside it", type=Path, metavar="FOLDER"),
    argument(
        "--workers", "processes to use; default: as the protocol says", None, False, type=at_least_one, metavar="N"
    ),
    argument("--device", "where to fit: cpu (default) or cuda", type=device, default="cpu"),
    shared.overwrite("replace files that a benchmark did not write"),
    *shared.JSON,
    groups=shared.IN_PARTS,
)


def _demo(call: Call) -> int:
    args, say = call.args, call.say
    workers = min(os.cpu_count() or 1, MOST_WORKERS) if args.workers is None else args.workers
    if workers < 1:
        raise InputError(f"--workers is {workers}, but at least 1 is needed. Leave it out to use all cores.")
    if not was_compiled(count_block):
        say("The first run on a machine compiles what it counts with and keeps it: about a minute more, once.")
    plan = full_plan(workers) if args.full else quick_plan(workers)
    with claim(args.out), step_bar("demo", args.quiet) as show:
        story = tell_story(plan, args.out, show)
    say(story.table, "What was found [95 % intervals]:", *(f"- {sentence}" for sentence in story.verdict))
    if story.reduced:
        say("Reduced, to take minutes (segcal demo --full runs everything):", *(f"- {text}" for text in story.reduced))
    say(*(f"no {name} study: {reason}" for name, reason in story.left_out.items()))
    say("Written:", *(f"- {path}" for path in story.written))
    return call.end(story.to_plain())


DEMO = Command(
    _demo,
    None,
    "Predict three embedded tasks with trained ensembles, calibrate, compare, and say what was found.",
    "example:\n  segcal demo --out demo-results",
    argument("--out", "default: demo-results", Role.FOLDER, default=Path("demo-results"), metavar="DIR"),
    flag("--full", "nothing reduced: the paper's protocol; takes hours"),
    argument("--workers", "processes to use; default: one per core, at most 4", type=int, metavar="N"),
    *shared.JSON,
)
