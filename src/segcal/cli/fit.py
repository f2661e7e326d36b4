"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse

import segcal
from segcal.cases import Cases, FileCases, load_split, save_split, split_folders
from segcal.cli.console import Output
from segcal.cli.engine import engine_of
from segcal.cli.fit_options import ABOUT, declare
from segcal.cli.fit_result import print_fit
from segcal.cli.fit_trust import remember
from segcal.cli.progress import fit_line
from segcal.cli.reading import open_folders
from segcal.errors import InputError
from segcal.fitting.artifact import check_vacant
from segcal.fitting.contest import read_part
from segcal.fitting.division import divide
from segcal.pooling import BEST
from segcal.target import claim_beside

__all__ = ["ABOUT", "declare", "run"]

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    output = Output(args.json)
    if args.part_id is None:
        check_vacant(args.output, args.overwrite)
    cases = open_folders(args, *split_folders(args.paths), pooling=BEST)
    calibration, validation = _divide(args, cases)
    used = [calibration] if validation is None else [calibration, validation]
    with claim_beside(args.output), engine_of(args, *used) as work, fit_line("fitting", args.quiet) as line:
        config = segcal.FitConfig(**{name: getattr(args, name) for name in FIT_OPTIONS})
        how = {"validation": validation, "config": config, "device": args.device, "workers": work.workers}
        how |= {"failed": None if args.strict else output.failed, "progress": line}
        kept = {"preserve": args.preserve, "allow_offset_dependent": args.allow_offset_dependent}
        names = None if args.calibrator is None else [args.calibrator]
        if work.part is not None:
            read_part(calibration, names=names, **kept, **how)
            return work.finish(output)
        if args.calibrator is not None and len(cases.poolings) == 1:
            fitted = segcal.fit(args.calibrator, calibration, **how)
        else:  # a name alone leaves the pooling to be chosen
            fitted = segcal.choose(calibration, names=names, **kept, **how)
        fitted = remember(args, fitted, cases, output, work.workers)
        segcal.save(fitted, args.output, args.overwrite)
    print_fit(output, fitted, args.output)
    return output.finish()


def _divide(args: argparse.Namespace, cases: FileCases) -> tuple[Cases, Cases | None]:
    """Return the cases to learn from, and those to compare on if they are others."""
    if args.validation is not None:
        own, labels = {member.folder.resolve() for member in cases.members}, cases.label_folder
        shared = next((path for path in args.validation if path.resolve() in own), None)
        if shared is not None:
            raise InputError(
                f"--validation is {shared}, but calibration cases cannot judge the fit. Leave it out to have the cases "
                "divided."
            )
        labelled = args.validation_labels or (None if labels is None else labels.folder)
        return cases, open_folders(args, args.validation, labelled, pooling=BEST)
    if args.splits is not None and args.splits.exists():
        split = load_split(cases, args.splits)
    else:
        split = divide(cases, args.val_share or 0.0, args.test_share, args.seed)
        if args.splits is not None:
            save_split(split, args.splits, args.seed)
    return split.cal, split.val if len(split.val) else None
