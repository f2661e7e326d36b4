"""``segcal check``: is this folder usable, and what is in it."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from segcal.cases import CheckResult, check_cases
from segcal.cli.console import DONE, USER_ERROR, Bar, Output, table
from segcal.cli.reading import common_options, reading_arguments, reading_options

EXAMPLE = "example: segcal check predictions/ labels/ --kind logits"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="is this folder usable, and what is in it",
        description="Read every file once and report all problems in one table.",
        epilog=EXAMPLE,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS... LABELS", help="the labels come last")
    parser.add_argument("--no-labels", action="store_true", help="there are no labels; all paths are predictions")
    return parser


def run(args: argparse.Namespace) -> int:
    """Check the folders and print what was found."""
    output = Output(args.json)
    alone = args.no_labels or len(args.paths) == 1
    folders, labels = (args.paths, None) if alone else (args.paths[:-1], args.paths[-1])
    with Bar("checking", sum(1 for _ in folders[0].iterdir()) if folders[0].is_dir() else 0) as bar:
        result = check_cases(folders, labels, progress=bar.step, **reading_arguments(args))
    output.say(*_tables(result), _verdict(result))
    output.document(
        {
            "usable": result.usable,
            "cases": result.cases,
            "format": result.format,
            "kind": result.kind,
            "pooling": result.pooling,
            "members": result.members,
            "num_classes": result.num_classes,
            "classes": result.class_table(),
            "problems": [asdict(problem) for problem in result.problems],
            "rows": [asdict(row) for row in result.rows],
        }
    )
    return DONE if result.usable else USER_ERROR


def _tables(result: CheckResult) -> list[Any]:
    title = (
        f"{result.cases} cases, {result.members} member(s), format {result.format}, kind {result.kind}, "
        f"{result.num_classes} classes"
    )
    classes = [
        [
            str(line["class"]) + (f" {line['name']}" if line["name"] else ""),
            f"{100 * line['predicted']:.3g} %",
            "" if line["labels"] is None else f"{100 * line['labels']:.3g} %",
        ]
        for line in result.class_table()
    ]
    made: list[Any] = [title, table(["class", "predicted", "labelled"], classes)]
    if result.problems:
        rows = [[problem.severity, problem.case_id or "all", problem.text] for problem in result.problems]
        found = table(["", "case", "what was found"], rows)
        for column in found.columns:
            column.justify = "left"
        made += [f"{len(rows)} things to know", found]
    return made


def _verdict(result: CheckResult) -> str:
    if result.usable:
        return "usable: every case can be read"
    broken = {problem.case_id for problem in result.problems if problem.severity == "error"}
    return f"not usable as it is: {len(broken)} case(s) have errors"
