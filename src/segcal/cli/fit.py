"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import segcal
from segcal.calibrators import CALIBRATORS
from segcal.cases import CaseError, Cases, FileCases, load_split, open_cases, save_split
from segcal.cli.console import Output, table
from segcal.cli.reading import common_options, open_labelled, readable, reading_arguments, reading_options, split_paths
from segcal.errors import InputError
from segcal.fitting import FitConfig, Fitted
from segcal.fitting.choice import Choice, candidates, choose
from segcal.fitting.progress import Progress

EXAMPLE = "example: segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="fit a calibrator; by default the best offset-free one that keeps the mask",
        description="Split the cases into calibration and validation, fit, compare, and save the winner.",
        epilog=EXAMPLE,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS... LABELS", help="the labels come last")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CAL", help="where the calibrator goes")
    parser.add_argument("--calibrator", choices=list(CALIBRATORS), help="this one, without a comparison")
    parser.add_argument("--preserve", choices=["order", "argmax", "none"], default="argmax", help="what must be kept")
    parser.add_argument("--allow-offset-dependent", action="store_true", help="also compare vs and ms")
    data = parser.add_argument_group("which cases")
    data.add_argument("--val-share", type=float, default=1 / 3, metavar="SHARE", help="share of validation cases")
    data.add_argument("--seed", type=int, default=0, help="seed of the split and of the voxel sample")
    data.add_argument("--splits", type=Path, metavar="FILE", help="splits.json: used if it is there, else written")
    data.add_argument(
        "--validation", type=Path, nargs="+", metavar="FOLDER", help="validation predictions of their own"
    )
    data.add_argument("--validation-labels", type=Path, metavar="FOLDER", help="their labels; default: LABELS")
    data.add_argument("--all", action="store_true", help="fit on all cases, without validation; needs --calibrator")
    fit = parser.add_argument_group("how to fit")
    fit.add_argument("--voxels", default="20000", help="voxels drawn from each case, or 'all'")
    fit.add_argument("--lam", type=float, help="strength on off-diagonal weights; default: chosen on validation")
    fit.add_argument("--mu", type=float, help="strength on biases; default: chosen on validation")
    fit.add_argument("--method", choices=["exact", "paper"], default="exact", help="paper: Adam and a search")
    fit.add_argument("--verify", action="store_true", help="also give the residual on all voxels")
    return parser


def run(args: argparse.Namespace) -> int:
    """Fit, print and save."""
    output = Output(args.json)
    failures: list[CaseError] = []
    cases = readable(open_labelled(args), args, failures)
    calibration, validation = _split(args, cases)
    config = FitConfig(
        lam=args.lam, mu=args.mu, voxels=_voxels(args.voxels), seed=args.seed, method=args.method, verify=args.verify
    )
    choice = None
    if args.calibrator is not None:
        fitted = segcal.fit(args.calibrator, calibration, validation, config, args.device)
    else:
        assert validation is not None
        names = candidates(cases.num_classes, args.preserve, args.allow_offset_dependent)
        with Progress("fitting") as progress:
            choice = choose(names, calibration, validation, config, args.device, progress)
        comparison = {"comparison": [row.to_dict() for row in choice.candidates], "chosen": choice.chosen.name}
        fitted = choice.chosen.fitted
        certificate = dataclasses.replace(fitted.certificate, details=fitted.certificate.details | comparison)
        fitted = dataclasses.replace(fitted, certificate=certificate)
    segcal.save(fitted, args.output)
    _print(output, fitted, choice, args.output, failures)
    return output.finish(failures)


def _split(args: argparse.Namespace, cases: FileCases) -> tuple[Cases, Cases | None]:
    if args.all:
        if args.calibrator is None:
            raise InputError(
                "--all leaves no validation cases, but a comparison needs them. Name one with --calibrator."
            )
        return cases, None
    if args.validation is not None:
        labels = args.validation_labels or split_paths(args.paths)[1]
        return cases, open_cases(args.validation, labels, strict=args.strict, **reading_arguments(args))
    if args.splits is not None and args.splits.exists():
        split = load_split(cases, args.splits)
        return split.cal, split.val if len(split.val) else None
    if not 0 < args.val_share < 1 or len(cases) < 2:
        raise InputError(
            f"{len(cases)} case(s) with a validation share of {args.val_share:g} cannot be divided, but at least one "
            "case is needed on each side. Add cases, or use --all with --calibrator."
        )
    val = min(max(1, round(args.val_share * len(cases))), len(cases) - 1)
    split = cases.split(cal=len(cases) - val, val=val, seed=args.seed)
    if args.splits is not None:
        save_split(split, args.splits, args.seed)
    # Groups are drawn whole; what fitted on neither side is used for the fit.
    return cases.subset([*split.cal.ids, *split.test.ids]), split.val if len(split.val) else None


def _voxels(text: str) -> Any:
    return text if text == "all" or not text.isdigit() else int(text)


def _print(output: Output, fitted: Fitted, choice: Choice | None, folder: Path, failures: list[CaseError]) -> None:
    certificate = fitted.certificate
    if choice is not None:
        rows = [
            [
                row.name + (" *" if row is choice.chosen else ""),
                f"{row.validation_nll:.5f}",
                f"{row.difference:+.5f}",
                f"{row.standard_error:.5f}",
                f"{row.fitted.calibrator.num_identifiable():,}",
            ]
            for row in choice.candidates
        ]
        headings = ["calibrator", "validation NLL", "worse than best by", "standard error", "parameters"]
        output.say(table(headings, rows), "* the simplest within one standard error of the best")
    kept = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}
    residual = "" if certificate.kkt_residual is None else f"; residual {certificate.kkt_residual:.1e}"
    output.say(
        f"{folder}: {kept[fitted.calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{certificate.voxels_available:,} voxels{residual}",
        f"fitted on {len(fitted.calibration_ids)} cases, validated on {len(fitted.validation_ids)}; both lists are in "
        "the artefact, and segcal evaluate reports these cases apart",
    )
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the artefact says how far it came")
    output.document(
        {
            "calibrator": str(folder),
            "certificate": certificate.to_dict(),
            "preserves": fitted.calibrator.preserves,
            "translation_invariant": fitted.calibrator.translation_invariant,
            "calibration_ids": fitted.calibration_ids,
            "validation_ids": fitted.validation_ids,
            "failed": {failure.case_id: failure.reason for failure in failures},
        }
    )
