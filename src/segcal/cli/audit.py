"""``segcal audit``: the promises of a calibrator, proved on its parameters and tried on data."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.cases import open_cases
from segcal.cli.console import DONE, USER_ERROR, Output
from segcal.cli.reading import common_options, reading_arguments, reading_options

EXAMPLE = "example: segcal audit calibrator/ predictions/ --kind logits"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="the promises of a calibrator, proved on its parameters and tried on data",
        description="Say for every promise how it is known, and show a concrete input where there is none.",
        epilog=EXAMPLE,
    )
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PREDICTIONS", help="predictions to try it on")
    return parser


def run(args: argparse.Namespace) -> int:
    """Examine the calibrator and print the findings."""
    output = Output(args.json)
    fitted = segcal.load(args.calibrator)
    cases = open_cases(args.paths, **reading_arguments(args)) if args.paths else None
    result = segcal.audit(fitted.calibrator, cases)
    certificate = fitted.certificate
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    output.say(
        str(result),
        f"fitted ({certificate.method}) on {len(fitted.calibration_ids)} cases, {certificate.voxels:,} of "
        f"{certificate.voxels_available:,} voxels{residual}; fitted for pooling {fitted.pooling}",
    )
    output.document(result.to_dict() | {"certificate": certificate.to_dict()})
    return DONE if result.passed else USER_ERROR
