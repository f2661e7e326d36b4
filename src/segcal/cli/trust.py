"""``segcal trust``: how far each structure of new cases can be trusted, without labels."""

import argparse
from pathlib import Path

import segcal
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.parsing import named, taus
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.trust_files import check_files, file_options, write_files
from segcal.names import class_titles
from segcal.report.evaluated import write_trust_page
from segcal.report.page import TRUST_PAGE
from segcal.target import check_file, claim
from segcal.trust.result import CSV_SIGNATURE, JSON_SIGNATURE, WORKLIST_SIGNATURE, write_trust

ABOUT = {
    "usage": "segcal trust CAL PREDICTIONS... -o OUT [options]",
    "description": "Estimate, for every case and structure and without labels, Dice and volume with intervals, and\n"
    "say which masks a person should look at and why. OUT gets trust.json, trust.csv, report.html, and\n"
    "worklist.csv: one verdict per case, and what to look at or to annotate first.\n"
    "The calibrator must have been fitted by segcal fit, which remembers labelled cases to compare with.",
    "epilog": "examples:\n  segcal trust calibrator/ predictions/ --kind logits -o trust/\n"
    "  segcal trust calibrator/ predictions/ --kind logits -o trust/ --link '(patient\\d+)_frame(\\d+)' \\\n"
    "    --biomarker 'EF=100*({left ventricle@01}-{left ventricle@02})/{left ventricle@01}'\n"
    "  segcal trust calibrator/ predictions/ -o trust/ --tau 0.8 --tau tumour=0.6 --series dicom/",
}
SIGNATURES = {
    "trust.json": JSON_SIGNATURE, "trust.csv": CSV_SIGNATURE, "worklist.csv": WORKLIST_SIGNATURE,
    "report.html": TRUST_PAGE,
}  # fmt: skip
OPTIONS = ("level", "link", "ignore_pooling", "device")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    option("-o", "--output", type=Path, required=True, metavar="OUT", help="a folder for the results")
    option("--level", type=float, default=0.9, help="of all intervals (default 0.9)")
    below = "a mask is bad below it (default 0.7), of all structures or of STRUCTURE=DICE; may be given several times"
    option("--tau", action="append", metavar="DICE", help=below)
    option("--link", metavar="REGEX", help="cases of one subject: two groups, subject and phase")
    sums = "an expression of volumes, {structure@phase} or {structure}; may be given several times"
    option("--biomarker", action="append", default=[], metavar="NAME=EXPR", help=sums)
    option("--all-classes", action="store_true", help="class 0 is a structure and no background")
    file_options(parser)
    option("--overwrite", action="store_true", help="replace such files though segcal did not write them")
    option("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Judge, print, write."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    given = {name: getattr(args, name) for name in OPTIONS} | {"background": not args.all_classes}
    titles = class_titles(fitted.class_names, fitted.calibrator.num_classes)
    check_files(args, titles)
    given["tau"] = taus(args.tau or ["0.7"], titles)
    # A part has not all cases of a subject.
    given["biomarkers"] = dict(named(text) for text in args.biomarker if args.part_id is None)
    given["failed"] = None if args.strict else output.failed
    with claim(args.output), engine_of(args, cases) as work:
        for name, signature in SIGNATURES.items():
            check_file(args.output / name, signature, (), args.overwrite)
        with case_bar("judging", len(own := work.own(cases)), args.quiet) as step:
            result = segcal.trust(fitted, own, progress=step, workers=work.workers, **given)
        if work.part is None:
            files = {} if cases.image_folder is None else cases.image_folder.files
            write_trust(result, args.output, {case: str(some[0].absolute()) for case, some in files.items()})
            write_trust_page(args.output / "report.html", result, fitted, cases)
        write_files(args, fitted, cases, result, work, output)
    if work.part is not None:
        return work.finish(output)
    more = ["segcal objects lists each component of these masks"] if fitted.objects is not None else []
    output.say(*result.parts(), *more, f"written to {args.output}")
    output.document(result.to_plain() | {"output": str(args.output)})
    return output.finish()
