"""``segcal check``: is this folder usable, and what is in it."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import segcal
from segcal.cases import CheckResult
from segcal.cli.codes import DONE, SOME_FAILED, USER_ERROR
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.progress import case_bar
from segcal.cli.reading import read_options
from segcal.cli.recorded import output_option, result_path
from segcal.cli.wording import in_options, plural, table
from segcal.memory import Footprint

LISTED = 5
FACTS = ("cases", "format", "kind", "pooling", "members", "num_classes", "usable")


ABOUT = {
    "usage": "segcal check PREDICTIONS... [LABELS] [options]",
    "description": "Read every file once and report everything that is wrong or odd, in one table.\n"
    "Exit code 0: all cases are usable; 3: some are not; 2: none is.",
    "epilog": "example:\n  segcal check predictions/ labels/ --kind logits --ignore 255",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    names = "PREDICTIONS LABELS"
    option("paths", nargs="+", type=Path, metavar=names, help="folders; of several, the last holds labels")
    option("--no-labels", action="store_true", help="all folders hold predictions")
    output_option(parser)


def run(args: argparse.Namespace) -> int:
    """Check the folders and print what was found."""
    output = Output(args.json)
    alone = args.no_labels or len(args.paths) == 1
    folders, labels = (args.paths, None) if alone else (args.paths[:-1], args.paths[-1])
    cases = segcal.open_cases(folders, labels, strict=args.strict, **read_options(args))
    cases.footprint = Footprint.of(args.command, args.workers)
    path = result_path(args, "check.json")
    with engine_of(args, cases) as work, case_bar("checking", len(own := work.own(cases)), args.quiet) as step:
        result = segcal.check(own, progress=step, workers=work.workers, strict=args.strict)
    if work.part is not None:
        return work.finish(output)
    output.say(*_lines(result))
    problems = [asdict(problem) | {"text": in_options(problem.text)} for problem in result.problems]
    found = {"classes": result.class_table(), "problems": problems, "rows": [asdict(row) for row in result.rows]}
    output.document({name: getattr(result, name) for name in FACTS} | found, path)
    return DONE if result.usable else SOME_FAILED if len(result.broken) < result.cases else USER_ERROR


def _lines(result: CheckResult) -> list[Any]:
    cases = plural(result.cases, "case")
    members = "" if result.members == 1 else f" of {result.members} members ({result.pooling})"
    what = "classes" if result.regions is None else "regions"
    found: list[Any] = [f"{cases}{members}, {result.num_classes} {what}; format {result.format}, kind {result.kind}"]
    if result.rows:
        classes = [
            [f"{line['class']} {line['name'] or ''}".strip(), _share(line["predicted"]), _share(line["labels"])]
            for line in result.class_table()
        ]
        found.append(table([what[:-2] if result.regions is None else what[:-1], "predicted", "labelled"], classes))
    rows = [[problem.severity, _which(ids), in_options(problem.text)] for problem, ids in result.digest()]
    found += [table(["", "which cases", "what was found"], rows, text=True)] if rows else []
    odd = f"; look into the {plural(result.suspicions, 'suspicion')} above first" if result.suspicions else ""
    usable = f"usable: every case can be read{odd}"
    return [*found, usable if result.usable else f"{len(result.broken)} of {cases} not usable"]


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def _which(ids: tuple[str, ...]) -> str:
    shown = "\n".join(ids[:LISTED]) or "the folder"
    return shown if len(ids) <= LISTED else f"{shown}\nand {len(ids) - LISTED} more"
