"""``segcal objects``: the connected components of masks, each with the probability that it is real."""

import argparse
from pathlib import Path

import segcal
from segcal.cases.parallel import map_ids
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.wording import plural
from segcal.errors import InputError
from segcal.integrations.viewers import ObjectMaps
from segcal.report.page import WORKLIST, write_worklist
from segcal.target import check_file, claim
from segcal.trust.guarantees import masks_folder
from segcal.trust.object_rows import CSV_SIGNATURE, JSON_SIGNATURE, write_objects

ABOUT = {
    "usage": "segcal objects CAL PREDICTIONS... -o OUT [options]",
    "description": "List the connected components of every mask without labels: the probability that each is real,\n"
    "its size with an interval, its expected Dice and place, a list of each case of which few are false, and\n"
    "how many are missed. OUT gets objects.json, objects.csv and worklist.html. The calibrator must have\n"
    "been fitted by segcal fit --objects.",
    "epilog": "examples:\n  segcal objects calibrator/ predictions/ --kind logits -o objects/ --fdr 0.1\n"
    "  segcal objects calibrator/ predictions/ -o objects/ --maps dicom-seg --series dicom/",
}
SIGNATURES = {"objects.json": JSON_SIGNATURE, "objects.csv": CSV_SIGNATURE, "worklist.html": WORKLIST}
OPTIONS = ("level", "fdr", "proved", "ignore_pooling", "device")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit --objects")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    option("-o", "--output", type=Path, required=True, metavar="OUT", help="a folder for the results")
    option("--labels", type=Path, metavar="FOLDER", help="label maps, if there are any: also say what they say")
    option("--level", type=float, default=0.9, help="of the intervals (default 0.9)")
    option("--fdr", type=float, default=0.1, help="largest mean false share of a case's list (default 0.1)")
    option("--proved", action="store_true", help="learn on half of the labelled groups, bound on the others")
    option("--maps", choices=["nifti", "dicom-seg"], help="also write one number per object, for viewers, to maps/")
    option("--series", type=Path, metavar="FOLDER", help="DICOM images, one sub-folder per case, for dicom-seg")
    option("--overwrite", action="store_true", help="replace such files though segcal did not write them")
    option("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Find, judge, print, write."""
    output = Output(args.json)
    if (args.maps == "dicom-seg") != (args.series is not None):
        raise InputError("--series goes with --maps dicom-seg, but one stands alone. Give both, or neither.")
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, args.labels, pooling=fitted.pooling)
    if args.series is not None:
        cases.require_classes("DICOM SEG of objects")
    given = {name: getattr(args, name) for name in OPTIONS} | {"failed": None if args.strict else output.failed}
    with claim(args.output), engine_of(args, cases) as work:
        for name, signature in SIGNATURES.items():
            check_file(args.output / name, signature, (), args.overwrite)
        with case_bar("finding objects", len(own := work.own(cases)), args.quiet) as step:
            result = segcal.objects(fitted, own, progress=step, workers=work.workers, **given)
        if work.part is None:
            write_objects(result, args.output)
            write_worklist(args.output / "worklist.html", result)
        if args.maps is not None:
            again = args.overwrite or work.part is not None  # a part goes on
            with masks_folder(args.output / "maps", again, whole=args.merged is None) as folder:
                write = ObjectMaps(fitted, cases, result.rows, folder, args.series)
                made = list(map_ids(own.ids, write, work.workers, given["failed"]))
            output.say(f"{plural(len(made), 'case')} written to {args.output / 'maps'}")
    if work.part is not None:
        return work.finish(output)
    output.say(*result.parts(), f"written to {args.output}")
    output.document(result.to_plain() | {"output": str(args.output)})
    return output.finish()
