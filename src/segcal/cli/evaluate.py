"""``segcal evaluate`` and ``segcal report``: confidences before and after calibration; and one page that shows them.

Cases that were held out are reported apart from those that the calibrator was fitted or chosen on.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import segcal
from segcal.cli import arguments as shared
from segcal.cli.call import Call, result_path
from segcal.cli.commands import Command, Role, argument
from segcal.errors import InputError
from segcal.evaluation.evaluate import TITLES, check_match, evaluate_by_part, in_groups_of
from segcal.evaluation.result import CSV_SIGNATURE, SUMMARY_SIGNATURE, labelled_rows, plain_by_part
from segcal.fitting.certificate import Fitted
from segcal.report.page import EVALUATION_PAGE
from segcal.target import check_file

SIGNATURES = (CSV_SIGNATURE, SUMMARY_SIGNATURE, EVALUATION_PAGE)


def _open(call: Call, fitted: Fitted | None) -> None:
    """Open the cases; those of a calibrator are held against it, and in the groups that its fit declared."""
    call.cases = opened = call.open(*call.labelled, None if fitted is None else fitted.pooling)
    if fitted is not None:
        check_match(fitted, opened, call.args.ignore_pooling)
        call.cases = in_groups_of(fitted, opened)
        if call.cases is not opened:
            call.say(f"groups as declared for the fit: {fitted.grouping} (--groups declares others)")


def _evaluate(call: Call) -> int:
    args, fitted = call.args, None if call.args.calibrator is None else call.fitted
    _open(call, fitted)
    args.csv = args.csv or result_path(args, "cases.csv", CSV_SIGNATURE)
    args.summary = args.summary or result_path(args, "summary.json", SUMMARY_SIGNATURE)
    for file, signature in zip((args.csv, args.summary, args.report), SIGNATURES, strict=True):
        check_file(file, signature, (), args.overwrite) if file is not None else None
    with call.engine(call.cases), call.bar("measuring"):
        options = {name: getattr(args, name) for name in ("convention", "seed", "device")}
        options |= {"metrics": args.metrics and args.metrics.split(","), "workers": call.workers}
        options |= {} if call.part is None else {"replicates": 1}  # of a shard only the tables are kept
        found = evaluate_by_part(call.own, fitted, call.failed, progress=call.progress, **options)
    if call.part is not None:
        return call.end_of_part()
    part, first = next(iter(found.items()))
    if args.csv is not None:
        replace(first, rows=labelled_rows(found)).to_csv(args.csv)
    if args.summary is not None:
        first.to_summary(args.summary)
    if args.report is not None:
        from segcal.report.evaluated import write_evaluation  # with all that draws, which few ask for

        write_evaluation(args.report, first, call.cases, fitted, part)
    for name, evaluation in found.items():
        call.say(f"{TITLES[name]}:", evaluation.table(call.output.width))
        call.say(*filter(None, [evaluation is first and evaluation.verdict]))
    written = [str(file) for file in (args.csv, args.summary, args.report) if file is not None]
    call.say(*[f"written: {', '.join(written)}"] * bool(written))
    return call.end(plain_by_part(found))


EVALUATE = Command(
    _evaluate,
    "segcal evaluate PREDICTIONS... LABELS [--calibrator CAL] [options]",
    "Measure every case, before and after calibration, with intervals over cases. Cases that the\n"
    "calibrator was fitted or chosen on are reported apart from those that were held out.",
    "example:\n  segcal evaluate predictions/ labels/ --kind logits --calibrator calibrator/ --csv cases.csv",
    shared.LABELLED,
    shared.RATERS,
    shared.calibrator("--calibrator"),
    argument("--metrics", f"some of: {', '.join(segcal.METRICS)}; default: most", metavar="A,B,..."),
    argument("--convention", "ECE of 50 bins, mean over cases (paper, default), or of 15 bins over all voxels "
             "(field)", choices=segcal.metrics.CONVENTIONS, default="paper"),
    shared.RESULTS,
    argument("--csv", "write one row per case, before and after", Role.FILE),
    argument("--summary", "write JSON shaped like nnU-Net's summary.json", Role.FILE),
    argument("--report", "write one offline HTML page of what was found", Role.FILE),
    shared.ANY_FILES,
    argument("--seed", "seed of the bootstrap (default 0)", default=0),
    *shared.POOLED,
    groups=shared.ON_CASES | shared.IN_PARTS,
    files={"evaluate.json": "", "cases.csv": "csv", "summary.json": "summary"},
)  # fmt: skip


def _report(call: Call) -> int:
    args = call.args
    if args.paths:
        if args.figures is not None:
            raise InputError("--figures are those of a folder of results, but a calibrator was named. Leave it out.")
        otherwise = {one.dest: one.declared.get("default") for one in EVALUATE.all_arguments}
        page = {"calibrator": args.results, "report": args.output or Path("report.html"), "output": None}
        return _evaluate(Call(argparse.Namespace(**otherwise | vars(args) | page)))
    from segcal.studies.page import write_report  # with all that draws

    path = write_report(args.results, args.output, args.figures, args.overwrite)
    call.say(f"report {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")
    return call.end({"report": str(path), "figures": None if args.figures is None else str(args.figures)})


REPORT = Command(
    _report,
    "segcal report RESULTS | CAL PREDICTIONS... LABELS [options]",
    "Write one HTML file that shows a folder of results and needs no network; or, of a calibrator and\n"
    "predictions, what segcal evaluate --report writes. See docs/report.md.",
    "examples:\n  segcal report demo-results -o report.html\n"
    "  segcal report calibrator/ predictions/ labels/ --kind logits -o report.html",
    argument("results", "a folder of segcal benchmark or segcal demo",
             lambda args: Role.CALIBRATOR if args.paths else None, metavar="RESULTS"),
    argument("paths", "with a calibrator in place of RESULTS", Role.CASES, nargs="*", metavar="PREDICTIONS LABELS"),
    shared.RATERS,
    shared.target("FILE", "the page; default: report.html, in RESULTS if it is one", Role.FILE, required=False),
    argument("--figures", "write the figures there too, as SVG files", Role.FOLDER),
    shared.ANY_FILES, shared.OWN_CLASS,
    groups=shared.ON_CASES,
    files={"*.svg": ""},
)  # fmt: skip
