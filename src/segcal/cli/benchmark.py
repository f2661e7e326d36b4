"""``segcal benchmark``: the paper's protocol on the user's cases, resumable, ending in the paper's tables."""

import argparse
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from segcal.atomic import temporary
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import FolderTask
from segcal.cli.console import Output
from segcal.cli.dispatch import job_engine
from segcal.cli.engine import engine_options, part_written
from segcal.cli.parsing import at_least_one, device
from segcal.cli.paths import check_output
from segcal.cli.progress import step_bar
from segcal.cli.reading import json_option
from segcal.demo.embedded import open_embedded
from segcal.report.paper_tables import FOLDER, task_table
from segcal.studies.page import PAGE, write_page_of
from segcal.studies.run import Finished, run_units
from segcal.studies.run import run as run_protocol
from segcal.summary import SUMMARY
from segcal.target import claim

ABOUT = {
    "description": "Fit and test every pipeline of a protocol, and run its studies. What is finished is skipped.",
    "epilog": "example: segcal benchmark protocol.toml -o results/ --workers 2",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("protocol", type=Path, metavar="PROTOCOL.toml", help="see docs/protocol.md")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULTS", help="folder for the results")
    parser.add_argument(
        "--root", type=Path, metavar="FOLDER", help="where its relative paths begin; default: beside it"
    )
    parser.add_argument(
        "--workers", type=at_least_one, metavar="N", help="processes to use; default: as the protocol says"
    )
    parser.add_argument("--device", type=device, default="cpu", help="where to fit: cpu (default) or cuda")
    parser.add_argument("--overwrite", action="store_true", help="replace files that a benchmark did not write")
    json_option(parser)
    engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the protocol with its studies, write the tables, and say what came out."""
    output = Output(args.json)
    protocol = load_protocol(args.protocol, args.root)
    tasks = [task for task in protocol.tasks if isinstance(task, FolderTask)]
    read = [protocol.root / name for task in tasks for name in (*task.members, task.labels)]
    check_output(args.output, True, read, read)
    # Predictions of embedded tasks are kept while it runs.
    with claim(args.output), step_bar("benchmark", args.quiet) as show, temporary(args.output) as cache:
        embedded, workers = partial(open_embedded, cache=cache), args.workers or protocol.workers
        protocol, args.workers = replace(protocol, device=args.device, workers=workers, embedded=embedded), workers
        given = (protocol, args.output, show, output.failed, args.overwrite, job_engine(args))
        if args.part_id is not None and run_units(*given):
            return part_written(output, args.part_id, args.num_parts, args.output)
        finished = run_protocol(*given)
        write_page_of(finished, overwrite=args.overwrite)
    _print(output, finished, args.output)
    return output.finish()


def _print(output: Output, finished: Finished, folder: Path) -> None:
    summary = finished.setting.summary
    paths = sorted((folder / FOLDER).iterdir())
    output.say(*(task_table(summary, task.name, intervals=False) for task in summary.tasks))
    output.say("Matched comparisons:", *(f"- {each.sentence}" for each in summary.comparisons))
    output.say(*(f"note: {note}" for note in summary.notes))
    output.say(*(f"no {name} study: {reason}" for name, reason in finished.left_out.items()))
    output.say(f"results {folder}, summary {folder / SUMMARY}, {len(paths)} files in {folder / FOLDER}")
    output.say(f"report {folder / PAGE}: open it in a browser")
    rows, comparisons = to_builtins(summary.results), to_builtins(summary.comparisons)
    output.document({
        "results": str(folder), "hash": summary.hash, "notes": list(summary.notes), "rows": rows,
        "comparisons": comparisons, "studies": list(finished.studies), "studies_left_out": finished.left_out,
        "tables": [str(path) for path in paths], "report": str(folder / PAGE),
    })  # fmt: skip
