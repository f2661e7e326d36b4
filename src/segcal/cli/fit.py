"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse

import segcal
from segcal.cases import split_folders
from segcal.cli.console import Output
from segcal.cli.fit_options import ABOUT, declare, divide_cases
from segcal.cli.fit_result import print_fit
from segcal.cli.reading import open_folders
from segcal.fitting.artifact import check_place
from segcal.pooling import BEST
from segcal.target import claim_beside

__all__ = ["ABOUT", "declare", "run"]

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    check_place(args.output, args.overwrite)
    output = Output(args.json)
    with claim_beside(args.output):
        cases = open_folders(args, *split_folders(args.paths), pooling=BEST)
        calibration, validation = divide_cases(args, cases)
        config = segcal.FitConfig(**{name: getattr(args, name) for name in FIT_OPTIONS})
        how = {"validation": validation, "config": config, "device": args.device, "workers": args.workers}
        how["failed"] = None if args.strict else output.failed
        if args.calibrator is not None and len(cases.poolings) == 1:
            fitted = segcal.fit(args.calibrator, calibration, **how)
        else:  # a name alone leaves the pooling to be chosen
            names = None if args.calibrator is None else [args.calibrator]
            kept = {"preserve": args.preserve, "allow_offset_dependent": args.allow_offset_dependent}
            fitted = segcal.choose(calibration, names=names, **kept, **how)
        segcal.save(fitted, args.output, args.overwrite)
    print_fit(output, fitted, args.output)
    return output.finish()
