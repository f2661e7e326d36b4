"""``segcal evaluate``: before and after calibration, with intervals; held-out cases apart from those fitted on."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.applying import check_match
from segcal.cases import CaseError, FileCases
from segcal.cli.console import Bar, Output
from segcal.cli.reading import common_options, open_labelled, reading_options
from segcal.errors import InputError
from segcal.evaluation import Evaluation
from segcal.fitting import Fitted

EXAMPLE = "example: segcal evaluate predictions/ labels/ --kind logits --calibrator calibrator/ --csv cases.csv"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="how honest the confidences are, before and after calibration",
        description="Measure every case; cases that the calibrator was fitted on are reported apart.",
        epilog=EXAMPLE,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS... LABELS", help="the labels come last")
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("--metrics", metavar="A,B,...", help="names of metrics; the usual ones if not given")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a case and stage")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write JSON shaped like nnU-Net's summary.json")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap")
    parser.add_argument(
        "--ignore-pooling", action="store_true", help="go on although it was fitted for another pooling"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    output = Output(args.json)
    cases = open_labelled(args)
    fitted = None if args.calibrator is None else segcal.load(args.calibrator)
    if fitted is not None:
        check_match(fitted, cases, args.ignore_pooling)
        fitted.calibrator.to(args.device)
    failures: list[CaseError] = []
    results: dict[str, Evaluation] = {}
    for title, part in _parts(cases, fitted).items():
        result = _evaluate(args, part, fitted, title, failures)
        if result is not None:
            results[title] = result
            output.say(f"{title}:", result)
    if not results:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. First: {failures[0]}")
    main = next(iter(results.values()))
    if args.csv is not None:
        main.to_csv(args.csv)
    if args.summary is not None:
        main.to_summary(args.summary)
    output.document(_document(results) | {"failed": {failure.case_id: failure.reason for failure in failures}})
    return output.finish(failures)


def _parts(cases: FileCases, fitted: Fitted | None) -> dict[str, FileCases]:
    """Return the cases by what part they had in the fit; held-out ones first."""
    if fitted is None:
        return {"all cases": cases}
    had_part = {*fitted.calibration_ids, *fitted.validation_ids}
    parts = {
        "held-out cases": [case_id for case_id in cases.ids if case_id not in had_part],
        "cases that the calibrator was fitted or chosen on": [case_id for case_id in cases.ids if case_id in had_part],
    }
    return {title: cases.subset(ids) for title, ids in parts.items() if ids}


def _evaluate(
    args: argparse.Namespace, cases: FileCases, fitted: Fitted | None, title: str, failures: list[CaseError]
) -> Evaluation | None:
    before = len(failures)
    with Bar(title, len(cases)) as bar:
        try:
            return segcal.evaluate(
                cases,
                None if fitted is None else fitted.calibrator,
                metrics=None if args.metrics is None else args.metrics.split(","),
                seed=args.seed,
                workers=args.workers,
                progress=bar.step,
                failed=None if args.strict else failures.append,
            )
        except InputError:
            if len(failures) - before == len(cases):
                return None
            raise


def _document(results: dict[str, Evaluation]) -> dict[str, Any]:
    documents = {}
    for title, result in results.items():
        plain = result.to_plain()
        documents[title] = {
            "before": plain["before"],
            "after": plain["after"],
            "change": plain["change"],
            "cases": len({row["case"] for row in result.rows}),
        }
    main, *rest = documents.values()
    seen = {"fitted_on": rest[0]} if rest else {}
    return {**main, "of": next(iter(documents)), **seen}
