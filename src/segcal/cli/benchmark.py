"""``segcal benchmark``: the paper's protocol on the user's cases, resumable, ending in the paper's tables."""

import argparse
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segcal.benchmark.protocol import Protocol, load_protocol
from segcal.benchmark.results import Results
from segcal.benchmark.run import Step, run_benchmark
from segcal.benchmark.summaries import write_summary
from segcal.cli.console import DONE, Output
from segcal.cli.parsing import at_least_one
from segcal.demo.opening import open_embedded
from segcal.report.document import SUMMARY
from segcal.report.tables import FOLDER, task_table, write_tables

EXAMPLE = "example: segcal benchmark protocol.toml -o results/ --workers 2"
CACHE = ".cache"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help="the paper's protocol on your own cases",
        description="Fit and test every pipeline of a protocol. What is finished is not done again.",
        epilog=EXAMPLE,
    )
    parser.add_argument("protocol", type=Path, metavar="PROTOCOL.toml", help="see docs/protocol.md")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULTS", help="folder for the results")
    parser.add_argument(
        "--root", type=Path, metavar="FOLDER", help="where its relative paths begin; default: beside it"
    )
    parser.add_argument(
        "--workers", type=at_least_one, metavar="N", help="processes to use; default: as the protocol says"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the protocol, write the tables, and say what came out."""
    output = Output(args.json)
    protocol = load_protocol(args.protocol, args.root)
    if args.workers is not None:
        protocol = replace(protocol, workers=args.workers)
    results = run_with_bar(protocol, args.output)
    summary = write_summary(results)
    paths = write_tables(args.output)
    output.say(*(task_table(summary, task["name"], intervals=False) for task in summary["tasks"]))
    output.say("Matched comparisons:", *(f"- {each['sentence']}" for each in summary["comparisons"]))
    output.say(*(f"note: {note}" for note in summary["notes"]))
    output.say(f"results {args.output}, summary {args.output / SUMMARY}, {len(paths)} files in {args.output / FOLDER}")
    output.document(
        {
            "results": str(args.output),
            "hash": summary["hash"],
            "notes": summary["notes"],
            "rows": summary["results"],
            "comparisons": summary["comparisons"],
            "tables": [str(path) for path in paths],
        }
    )
    return DONE


def run_with_bar(protocol: Protocol, folder: Path) -> Results:
    """Run a protocol with a progress bar on a terminal; predictions of embedded tasks are kept while it runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("benchmark", total=None)

        def show(step: Step) -> None:
            bar.update(task, completed=step.done, total=step.total, description=step.message or "benchmark")

        results = run_benchmark(protocol, folder, partial(open_embedded, cache=folder / CACHE), show)
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    return results
