"""``segcal evaluate``: before and after calibration, with intervals; held-out cases apart from those fitted on."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import segcal
from segcal.cases import Cases, FileCases
from segcal.cli.console import Bar, Output
from segcal.cli.reading import common_options, open_folders, reading_options, split_paths
from segcal.errors import InputError
from segcal.evaluation import Evaluation
from segcal.evaluation.apply import check_match
from segcal.evaluation.by_part import FITTED_ON, TITLES, divide_by_part, document, labelled_rows, related
from segcal.evaluation.result import CSV_SIGNATURE, SUMMARY_SIGNATURE
from segcal.fitting import Fitted
from segcal.report.evaluated import evaluation_document as evaluated_document
from segcal.report.page import PAGE_SIGNATURE, write_page
from segcal.target import check_file

FLATTERS = "No case was held out: the calibrator was fitted or chosen on these, and the numbers flatter it."


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="how honest the confidences are, before and after calibration",
        usage="segcal evaluate PREDICTIONS... LABELS [--calibrator CAL] [options]",
        description="Measure every case, before and after calibration, with intervals over cases. Cases that the\n"
        "calibrator was fitted or chosen on are reported apart from those that were held out.",
        epilog="example:\n"
        "  segcal evaluate predictions/ labels/ --kind logits --calibrator calibrator/ --csv cases.csv",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; the last one holds the labels"
    )
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("--metrics", metavar="A,B,...", help=f"some of: {', '.join(segcal.METRICS)}; default: most")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a case, before and after")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write JSON shaped like nnU-Net's summary.json")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write one offline HTML page of what was found")
    parser.add_argument("--overwrite", action="store_true", help="replace such files though segcal did not write them")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    parser.add_argument("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    output = Output(args.json)
    fitted = None if args.calibrator is None else segcal.load(args.calibrator)
    cases = open_folders(args, *split_paths(args.paths), pool=None if fitted is None else fitted.pooling)
    if fitted is not None:
        check_match(fitted, cases, args.ignore_pooling)
        fitted.calibrator.to(args.device)
    _check_targets(args, cases)
    parts = divide_by_part(cases, fitted)
    found = {name: _evaluate(args, part, fitted, name, output) for name, part in parts.items()}
    results = {name: result for name, result in found.items() if result is not None}
    if not results:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. First: {output.failures[0]}")
    first = next(iter(results))
    _write(args, results, parts[first], fitted)
    for name, result in results.items():
        output.say(f"{TITLES[name]}:", result.table(output.width))
    if first == FITTED_ON:
        output.warn("no case was held out; what the calibrator is worth shows on cases that it has not seen")
    if count := related(parts):
        output.warn(f"{count} held-out cases belong to groups of which other cases were fitted on")
    output.document(document(results))
    return output.finish()


def _check_targets(args: argparse.Namespace, cases: FileCases) -> None:
    inputs = [path for case_id in cases.ids for path in cases.sources(case_id)]
    inputs += [] if args.calibrator is None else list(args.calibrator.iterdir())
    for path, signature in (
        (args.csv, CSV_SIGNATURE),
        (args.summary, SUMMARY_SIGNATURE),
        (args.report, PAGE_SIGNATURE),
    ):
        if path is not None:
            check_file(path, signature, inputs, args.overwrite)


def _write(args: argparse.Namespace, results: Mapping[str, Evaluation], cases: Cases, fitted: Fitted | None) -> None:
    name, first = next(iter(results.items()))
    if args.csv is not None:
        replace(first, rows=labelled_rows(results)).to_csv(args.csv)
    if args.summary is not None:
        first.to_summary(args.summary)
    if args.report is not None:
        measured = cases.subset([row["case"] for row in first.rows])
        notes = [FLATTERS] if name == FITTED_ON else []
        write_page(args.report, evaluated_document(first, measured, fitted, notes=notes))


def _evaluate(
    args: argparse.Namespace, cases: Cases, fitted: Fitted | None, name: str, output: Output
) -> Evaluation | None:
    before = len(output.failures)
    with Bar(f"measuring ({name})", len(cases)) as bar:
        try:
            return segcal.evaluate(
                cases,
                None if fitted is None else fitted.calibrator,
                metrics=None if args.metrics is None else args.metrics.split(","),
                seed=args.seed,
                workers=args.workers,
                progress=bar.step,
                failed=None if args.strict else output.failed,
            )
        except InputError:
            if len(output.failures) - before == len(cases):
                return None  # every one of them failed, and is listed
            raise
