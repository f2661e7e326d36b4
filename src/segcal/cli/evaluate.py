"""``segcal evaluate``: before and after calibration, with intervals; held-out cases apart from those fitted on."""

import argparse
from dataclasses import replace
from pathlib import Path

import segcal
from segcal.cases import split_folders
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.recorded import output_option, result_path
from segcal.evaluation.evaluate import TITLES, check_match, evaluate_by_part
from segcal.evaluation.result import CSV_SIGNATURE, SUMMARY_SIGNATURE, labelled_rows, plain_by_part
from segcal.report.page import EVALUATION_PAGE
from segcal.target import check_file

SIGNATURES = (CSV_SIGNATURE, SUMMARY_SIGNATURE, EVALUATION_PAGE)


ABOUT = {
    "usage": "segcal evaluate PREDICTIONS... LABELS [--calibrator CAL] [options]",
    "description": "Measure every case, before and after calibration, with intervals over cases. Cases that the\n"
    "calibrator was fitted or chosen on are reported apart from those that were held out.",
    "epilog": "example:\n  segcal evaluate predictions/ labels/ --kind logits --calibrator calibrator/ --csv cases.csv",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; the last one holds the labels"
    )
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("--metrics", metavar="A,B,...", help=f"some of: {', '.join(segcal.METRICS)}; default: most")
    parser.add_argument(
        "--convention",
        choices=segcal.metrics.CONVENTIONS,
        default="paper",
        help="ECE of 50 bins, mean over cases (paper, default), or of 15 bins over all voxels (field)",
    )
    output_option(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row per case, before and after")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write JSON shaped like nnU-Net's summary.json")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write one offline HTML page of what was found")
    parser.add_argument("--overwrite", action="store_true", help="replace such files though segcal did not write them")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    parser.add_argument("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    output = Output(args.json)
    fitted = None if args.calibrator is None else load_calibrator(args)
    cases = open_folders(args, *split_folders(args.paths), pooling=None if fitted is None else fitted.pooling)
    if fitted is not None:
        check_match(fitted, cases, args.ignore_pooling)
    path = result_path(args, "evaluate.json")
    args.csv = args.csv or result_path(args, "cases.csv", CSV_SIGNATURE)
    args.summary = args.summary or result_path(args, "summary.json", SUMMARY_SIGNATURE)
    for target, signature in zip((args.csv, args.summary, args.report), SIGNATURES, strict=True):
        check_file(target, signature, (), args.overwrite) if target is not None else None
    with engine_of(args, cases) as work, case_bar("measuring", len(own := work.own(cases)), args.quiet) as step:
        failed, metrics = None if args.strict else output.failed, args.metrics and args.metrics.split(",")
        options = {
            "metrics": metrics,
            "convention": args.convention,
            "seed": args.seed,
            "workers": work.workers,
            "progress": step,
            "device": args.device,
        }
        options |= {} if work.part is None else {"replicates": 1}  # of a part only the tables are kept
        results = evaluate_by_part(own, fitted, failed, **options)
    if work.part is not None:
        return work.finish(output)
    part, first = next(iter(results.items()))
    if args.csv is not None:
        replace(first, rows=labelled_rows(results)).to_csv(args.csv)
    if args.summary is not None:
        first.to_summary(args.summary)
    if args.report is not None:
        from segcal.report.evaluated import write_evaluation  # with all that draws, which few ask for

        write_evaluation(args.report, first, cases, fitted, part)
    for name, result in results.items():
        output.say(f"{TITLES[name]}:", result.table(output.width))
    output.document(plain_by_part(results), path)
    return output.finish()
