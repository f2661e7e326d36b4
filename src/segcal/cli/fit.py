"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse

import segcal
from segcal.calibrators import make_calibrator
from segcal.cases import split_folders
from segcal.cli.console import Output
from segcal.cli.fit_options import ABOUT, declare, divide_cases
from segcal.cli.fit_result import print_fit
from segcal.cli.reading import open_folders
from segcal.fitting import FitConfig, Fitted
from segcal.fitting.artifact import check_place
from segcal.fitting.choice import Decision
from segcal.fitting.contest import compare, read_poolings
from segcal.fitting.eligible import candidates
from segcal.fitting.fit import fit_to
from segcal.fitting.progress import Progress
from segcal.fitting.request import read_data
from segcal.pooling import BEST
from segcal.target import claim_beside

__all__ = ["ABOUT", "declare", "run"]

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    check_place(args.output, args.overwrite)
    output = Output(args.json)
    with claim_beside(args.output):
        fitted, decision = _fit(args, output)
        segcal.save(fitted, args.output, args.overwrite)
    print_fit(output, fitted, decision, args.output)
    return output.finish()


def _fit(args: argparse.Namespace, output: Output) -> tuple[Fitted, Decision | None]:
    cases = open_folders(args, *split_folders(args.paths), pooling=BEST)
    named = args.calibrator is not None
    names = [args.calibrator] if named else candidates(cases.num_classes, args.preserve, args.allow_offset_dependent)
    for name in names:
        for pooling in cases.poolings:
            invariant = make_calibrator(name, cases.num_classes).translation_invariant
            cases.pooled(pooling).require_offset(name, invariant)
    given = *divide_cases(args, cases), FitConfig(**{name: getattr(args, name) for name in FIT_OPTIONS})
    with Progress("fitting") as progress:
        how = progress, args.workers, None if args.strict else output.failed
        if named and len(cases.poolings) == 1:
            data = read_data(*given, *how, suspect=True)
            return fit_to(args.calibrator, data, given[-1], args.device, progress), None
        return compare(names, read_poolings(*given, *how), given[-1], args.device, progress)
