"""``segcal view``: calibrated probabilities as files that viewers open."""

import argparse
from pathlib import Path

import segcal
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.trust_files import dicom_options
from segcal.cli.wording import plural
from segcal.integrations.viewers import FORMS, LEVELS

ABOUT = {
    "usage": "segcal view CAL PREDICTIONS... -o OUT [--to FORM] [options]",
    "description": "Calibrate every case and write what a viewer opens, in the geometry of the predictions.",
    "epilog": "examples:\n  segcal view calibrator/ predictions/ -o maps/ --to contours\n"
    "  segcal view calibrator/ predictions/ -o seg/ --to dicom-seg --series dicom/",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a new folder")
    parser.add_argument("--to", choices=FORMS, default="nifti", help="what to write (default nifti)")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS, metavar="P", help="of iso-contours")
    parser.add_argument("--series", type=Path, metavar="FOLDER", help="DICOM images, one sub-folder per case")
    dicom_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write case by case."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    with case_bar("writing", len(cases), args.quiet) as step:
        failed = None if args.strict else output.failed
        codes = {"segments": args.segments, "description": args.description}
        made = segcal.view(fitted, cases, args.output, args.to, args.levels, args.series, step, failed, **codes)
    output.say(f"{plural(len(made), 'file')} written to {args.output}")
    output.document({"files": [str(path) for path in made]})
    return output.finish()
