"""``segcal apply``: calibrated probabilities, in the format that came in."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.applying import Applied, Applier, check_match
from segcal.cases import CaseError, open_cases
from segcal.cases.parallel import map_cases
from segcal.cli.console import Bar, Output
from segcal.cli.reading import common_options, reading_arguments, reading_options

EXAMPLE = "example: segcal apply calibrator/ predictions/ -o calibrated/ --kind logits --confidence-map"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="calibrated probabilities, in the format that came in",
        description="Calibrate every case into a new folder; complete cases that are there already are skipped.",
        epilog=EXAMPLE,
    )
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one a member")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a new folder")
    parser.add_argument("--output-kind", choices=["logits", "probs"], help="what to write; default: what came in")
    parser.add_argument("--confidence-map", action="store_true", help="also write one map a case for a viewer")
    parser.add_argument(
        "--ignore-pooling", action="store_true", help="apply although it was fitted for another pooling"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Calibrate case by case."""
    output = Output(args.json)
    fitted = segcal.load(args.calibrator)
    fitted.calibrator.to(args.device)
    cases = open_cases(args.paths, strict=args.strict, **reading_arguments(args))
    check_match(fitted, cases, args.ignore_pooling)
    applier = Applier(fitted, cases, args.output, args.output_kind, args.confidence_map)
    missing = cases.subset(case_id for case_id in cases.ids if not applier.writer.done(case_id))
    failures: list[CaseError] = []
    done: dict[str, Applied] = {}
    with Bar("calibrating", len(missing)) as bar:
        for case_id, applied in map_cases(missing, applier, args.workers, None if args.strict else failures.append):
            done[case_id] = applied
            bar.step()
    voxels, flips = sum(a.voxels for a in done.values()), sum(a.flips for a in done.values())
    already = len(cases) - len(missing)
    output.say(f"{len(done)} cases written to {args.output}" + (f", {already} were there already" if already else ""))
    output.say(f"{flips:,} of {voxels:,} voxels changed their class")
    cases_done = {case_id: {"voxels": a.voxels, "flips": a.flips, "files": a.files} for case_id, a in done.items()}
    failed = {failure.case_id: failure.reason for failure in failures}
    output.document(
        {"written": cases_done, "already_there": already, "voxels": voxels, "flips": flips, "failed": failed}
    )
    return output.finish(failures)
