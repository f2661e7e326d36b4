"""``segcal apply``: calibrated probabilities, in the format that came in."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.cases.parallel import map_cases
from segcal.cases.suspicion import doubtful_kind, warn
from segcal.cli.console import Bar, Output, plural
from segcal.cli.reading import common_options, open_folders, reading_options
from segcal.evaluation.apply import Applied, Applier, check_match
from segcal.target import claim


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="calibrated probabilities, in the format that came in",
        usage="segcal apply CAL PREDICTIONS... -o OUT [options]",
        description="Calibrate every case into a new folder, in the format that came in. Every file is read back and\n"
        "compared before it is put in place. Run again, the command goes on with what is missing or changed.",
        epilog="example:\n  segcal apply calibrator/ predictions/ -o calibrated/ --kind logits --confidence-map",
    )
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one a member")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a new folder")
    parser.add_argument("--output-kind", choices=["logits", "probs"], help="what to write; default: what came in")
    parser.add_argument("--confidence-map", action="store_true", help="also write one map a case for a viewer")
    parser.add_argument("--overwrite", action="store_true", help="clear what another calibrator or other cases made")
    parser.add_argument("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")
    return parser


def run(args: argparse.Namespace) -> int:
    """Calibrate case by case."""
    output = Output(args.json)
    fitted = segcal.load(args.calibrator)
    cases = open_folders(args, args.paths, pool=fitted.pooling)
    check_match(fitted, cases, args.ignore_pooling)
    fitted.calibrator.to(args.device)
    done: dict[str, Applied] = {}
    with claim(args.output):
        applier = Applier(fitted, cases, args.output, args.output_kind, args.confidence_map, args.overwrite)
        missing, stale = applier.missing(), applier.stale()
        warn(doubtful_kind(missing))
        with Bar("calibrating", len(missing)) as bar:
            for case_id, applied in map_cases(missing, applier, args.workers, None if args.strict else output.failed):
                done[case_id] = applied
                bar.step()
    voxels, flips = sum(a.voxels for a in done.values()), sum(a.flips for a in done.values())
    already = len(cases) - len(missing)
    there = f", {already:,} were there already" if already else ""
    output.say(f"{plural(len(done), 'case')} written to {args.output}{there}")
    if done:
        output.say(f"{flips:,} of {plural(voxels, 'voxel')} changed their class")
    written = {case_id: {"voxels": a.voxels, "flips": a.flips, "files": a.files} for case_id, a in done.items()}
    output.warn_of_stale(stale, args.output)
    output.document({"written": written, "already_there": already, "stale": stale, "voxels": voxels, "flips": flips})
    return output.finish()
