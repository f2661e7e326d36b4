"""``segcal apply``: calibrated probabilities, in the format that came in."""

import argparse
from dataclasses import asdict
from pathlib import Path

import segcal
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.wording import plural

ABOUT = {
    "usage": "segcal apply CAL PREDICTIONS... -o OUT [options]",
    "description": "Calibrate every case into a new folder, in the format that came in. Every file is read back and\n"
    "compared before it is put in place. Run again, the command goes on with what is missing or changed.",
    "epilog": "example:\n  segcal apply calibrator/ predictions/ -o calibrated/ --kind logits --confidence-map",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a new folder")
    parser.add_argument(
        "--output-kind", choices=["logits", "probs", "sigmoid"], help="what to write; default: what came in"
    )
    parser.add_argument("--confidence-map", action="store_true", help="also write one map per case for a viewer")
    parser.add_argument("--overwrite", action="store_true", help="clear what another calibrator or other cases made")
    parser.add_argument("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Calibrate case by case."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    options = ("output_kind", "confidence_map", "overwrite", "ignore_pooling", "device")
    given = {name: getattr(args, name) for name in options}
    given["failed"] = None if args.strict else output.failed
    with engine_of(args, cases) as work, case_bar("calibrating", len(own := work.own(cases)), args.quiet) as step:
        done = segcal.apply(fitted, own, args.output, workers=work.workers, progress=step, **given)
    if work.part is not None:
        return work.finish(output)
    output.written(len(done.written), args.output, done.already_there, done.stale)
    if done.written:
        output.say(f"{done.flips:,} of {plural(done.voxels, 'voxel')} changed their class")
    output.document(asdict(done) | {"voxels": done.voxels, "flips": done.flips})
    return output.finish()
