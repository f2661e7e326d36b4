"""``segcal audit``: the promises of a calibrator, proved on its parameters and tried on data."""

import argparse
from pathlib import Path

import segcal
from segcal.cli.codes import ALARM
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.recorded import output_option, result_path
from segcal.cli.wording import plural

ABOUT = {
    "usage": "segcal audit CAL [PREDICTIONS...] [options]",
    "description": "Say for every promise how it is known, and show a concrete input where there is none. Every\n"
    "voxel of the predictions, if there are any, is tried. Exit code 4: a promise is broken.",
    "epilog": "example:\n  segcal audit calibrator/ predictions/ --kind logits",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PREDICTIONS", help="predictions to try it on")
    output_option(parser)


def run(args: argparse.Namespace) -> int:
    """Examine the calibrator and print the findings."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling) if args.paths else None
    path, failed = result_path(args, "audit.json"), None if args.strict else output.failed
    with engine_of(args, *([] if cases is None else [cases])) as work:
        own = None if cases is None else work.own(cases)
        with case_bar("trying", 0 if own is None else len(own), args.quiet) as step:
            result = segcal.audit(fitted.calibrator, own, work.workers, failed, step, args.device)
    if work.part is not None:
        return work.finish(output)
    certificate = fitted.certificate
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    output.say(
        str(result),
        f"fitted ({certificate.method}) on {plural(len(fitted.calibration_ids), 'case')}, {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}; for pooling {fitted.pooling}",
    )
    output.document(result.to_dict() | {"certificate": certificate.to_dict(), "pooling": fitted.pooling}, path)
    code = output.finish()
    return code if result.passed else ALARM
