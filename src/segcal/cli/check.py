"""``segcal check``: is this folder usable, and what is in it."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from segcal.cases import CheckResult, open_cases
from segcal.cases.check import check
from segcal.cli.console import DONE, SOME_FAILED, USER_ERROR, Bar, Output, in_options, plural, table
from segcal.cli.reading import common_options, reading_arguments, reading_options

LISTED = 5


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="is this folder usable, and what is in it",
        usage="segcal check PREDICTIONS... [LABELS] [options]",
        description="Read every file once and report everything that is wrong or odd, in one table.\n"
        "Exit code 0: all cases are usable; 3: some are not; 2: none is.",
        epilog="example:\n  segcal check predictions/ labels/ --kind logits --ignore 255",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; of several, the last holds labels"
    )
    parser.add_argument("--no-labels", action="store_true", help="all folders hold predictions")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check the folders and print what was found."""
    output = Output(args.json)
    alone = args.no_labels or len(args.paths) == 1
    folders, labels = (args.paths, None) if alone else (args.paths[:-1], args.paths[-1])
    cases = open_cases(folders, labels, strict=args.strict, **reading_arguments(args))
    with Bar("checking", len(cases)) as bar:
        result = check(cases, progress=bar.step, workers=args.workers, strict=args.strict)
    output.say(*_tables(result), _verdict(result))
    facts = ["cases", "format", "kind", "pooling", "members", "num_classes", "usable"]
    output.document(
        {name: getattr(result, name) for name in facts}
        | {
            "classes": result.class_table(),
            "problems": [asdict(problem) | {"text": in_options(problem.text)} for problem in result.problems],
            "rows": [asdict(row) for row in result.rows],
        }
    )
    if result.usable:
        return DONE
    return SOME_FAILED if len(result.broken) < result.cases else USER_ERROR


def _tables(result: CheckResult) -> list[Any]:
    members = "" if result.members == 1 else f" of {result.members} members ({result.pooling})"
    title = (
        f"{plural(result.cases, 'case')}{members}, {result.num_classes} classes; format {result.format}, "
        f"kind {result.kind}"
    )
    classes = [
        [f"{line['class']} {line['name'] or ''}".strip(), _share(line["predicted"]), _share(line["labels"])]
        for line in result.class_table()
    ]
    made: list[Any] = [title, table(["class", "predicted", "labelled"], classes)] if result.rows else [title]
    rows = [[problem.severity, _which(ids), in_options(problem.text)] for problem, ids in result.digest()]
    return [*made, table(["", "which cases", "what was found"], rows, text=True)] if rows else made


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def _which(ids: tuple[str, ...]) -> str:
    shown = "\n".join(ids[:LISTED]) or "the folder"
    return shown if len(ids) <= LISTED else f"{shown}\nand {len(ids) - LISTED} more"


def _verdict(result: CheckResult) -> str:
    if result.usable:
        odd = f"; look into the {plural(result.suspicions, 'suspicion')} above first" if result.suspicions else ""
        return f"usable: every case can be read{odd}"
    return f"{len(result.broken)} of {plural(result.cases, 'case')} not usable"
