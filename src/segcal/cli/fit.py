"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.calibrators import CALIBRATORS, make_calibrator
from segcal.cases import Cases, FileCases, load_split, require_offset, save_split
from segcal.cases.checking import ENOUGH_CASES
from segcal.cli.console import Output, plural, table
from segcal.cli.parsing import voxels
from segcal.cli.reading import common_options, open_folders, reading_options, split_paths
from segcal.errors import InputError
from segcal.fitting import FitConfig, Fitted
from segcal.fitting.choice import Choice, candidates, choose
from segcal.fitting.division import divide
from segcal.fitting.fit import fit_to, read_data
from segcal.fitting.progress import Progress

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="fit a calibrator; by default the best one that keeps the mask",
        usage="segcal fit PREDICTIONS... LABELS -o CAL [options]",
        description="Divide the cases into calibration and validation, fit, compare on validation, save the winner.\n"
        "By default every calibrator competes that ignores the logit offset and keeps the mask; the\n"
        "simplest that is within one standard error of the best wins.",
        epilog="examples:\n  segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255\n"
        "  segcal fit member_*/ labels/ -o calibrator/ --kind logits --pool mean_logits --calibrator ts --all",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; the last one holds the labels"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CAL", help="where the calibrator goes")
    parser.add_argument(
        "--calibrator",
        choices=list(CALIBRATORS),
        metavar="NAME",
        help="this one, without a comparison; see docs/calibrators.md",
    )
    parser.add_argument(
        "--preserve", choices=["order", "argmax", "none"], default="argmax", help="what must be kept (default argmax)"
    )
    parser.add_argument("--allow-offset-dependent", action="store_true", help="calibrators such as vs and ms compete")
    data = parser.add_argument_group("which cases")
    data.add_argument(
        "--val-share", type=float, default=1 / 3, metavar="SHARE", help="for validation, of what the test leaves (1/3)"
    )
    data.add_argument(
        "--test-share", type=float, default=0, metavar="SHARE", help="left unseen, for segcal evaluate (default 0)"
    )
    data.add_argument("--seed", type=int, default=0, help="of the division and of the voxel sample (default 0)")
    data.add_argument("--splits", type=Path, metavar="FILE", help="splits.json: used if it is there, else written")
    data.add_argument("--validation", type=Path, nargs="+", metavar="FOLDER", help="predictions for validation alone")
    data.add_argument("--validation-labels", type=Path, metavar="FOLDER", help="their labels; default: LABELS")
    data.add_argument("--all", action="store_true", help="fit on all cases, without validation; needs --calibrator")
    fit = parser.add_argument_group("how to fit")
    fit.add_argument("--voxels", type=voxels, default=20_000, metavar="N|all", help="of each case (default 20000)")
    fit.add_argument("--lam", type=float, help="strength on off-diagonal weights; default: chosen on validation")
    fit.add_argument("--mu", type=float, help="strength on biases; default: chosen on validation")
    fit.add_argument("--method", choices=["exact", "paper"], default="exact", help="paper: Adam and a search")
    fit.add_argument("--verify", action="store_true", help="also give the residual on all voxels")
    return parser


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    output = Output(args.json)
    cases = open_folders(args, *split_paths(args.paths))
    named = args.calibrator is not None
    names = [args.calibrator] if named else candidates(cases.num_classes, args.preserve, args.allow_offset_dependent)
    for name in names:
        require_offset(cases, name, make_calibrator(name, cases.num_classes).translation_invariant)
    calibration, validation = _divide(args, cases)
    settings = {name: getattr(args, name) for name in ("lam", "mu", "voxels", "seed", "method", "verify")}
    config, failed = FitConfig(**settings), None if args.strict else output.failed
    choice = None
    with Progress("fitting") as progress:
        data = read_data(calibration, validation, config, progress, args.workers, failed, suspect=True)
        if named:
            fitted = fit_to(args.calibrator, data, config, args.device, progress)
        else:
            choice = choose(names, data, config, args.device, progress, args.workers)
            fitted = choice.fitted
    segcal.save(fitted, args.output)
    _print(output, fitted, choice, args.output)
    return output.finish()


def _divide(args: argparse.Namespace, cases: FileCases) -> tuple[Cases, Cases | None]:
    if args.all:
        if args.splits is not None:
            raise InputError("--all and --splits contradict each other: a split keeps cases apart. Leave one out.")
        if args.calibrator is None:
            raise InputError(
                "--all leaves no validation cases, but a comparison needs them. Name one with --calibrator."
            )
        return cases, None
    if args.validation is not None:
        own = {path.resolve() for path in split_paths(args.paths)[0]}
        shared = next((path for path in args.validation if path.resolve() in own), None)
        if shared is not None:
            raise InputError(
                f"--validation is {shared}, but calibration cases cannot judge the fit. Leave it out to have the cases "
                "divided."
            )
        return cases, open_folders(args, args.validation, args.validation_labels or split_paths(args.paths)[1])
    if args.splits is not None and args.splits.exists():
        split = load_split(cases, args.splits)
    else:
        split = divide(cases, args.val_share, args.test_share, args.seed)
        if args.splits is not None:
            save_split(split, args.splits, args.seed)
    return split.cal, split.val if len(split.val) or args.calibrator is None else None


def _print(output: Output, fitted: Fitted, choice: Choice | None, folder: Path) -> None:
    certificate, calibrator = fitted.certificate, fitted.calibrator
    if choice is not None:
        rows = [
            [
                f"{row.name} <-" if row is choice.chosen else row.name,
                f"{row.validation_nll:.5f}",
                f"{row.difference:.5f} ± {row.standard_error:.5f}",
                f"{row.parameters:,}",
            ]
            for row in choice.candidates
        ]
        output.say(
            table(["calibrator", "validation NLL", "worse than the best by", "parameters"], rows),
            "<- the simplest within one standard error of the best",
        )
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    name = choice.chosen.name if choice is not None else type(calibrator).__name__
    output.say(
        f"{folder}: {name}, {KEPT[calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}",
        f"fitted on {plural(len(fitted.calibration_ids), 'case')}, validated on {len(fitted.validation_ids)}; the "
        "calibrator remembers which, and segcal evaluate reports them apart",
    )
    if choice is not None and choice.chosen.name == "identity":
        output.say("identity leaves every confidence as it is: nothing better was found on the validation cases")
    count = len(fitted.calibration_ids) + len(fitted.validation_ids)
    if count < ENOUGH_CASES:
        output.say(f"{plural(count, 'case')} are few: with {ENOUGH_CASES} or more, the choice is steadier")
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the calibrator says how far it came")
    output.document(
        {
            "calibrator": str(folder),
            "certificate": certificate.to_dict(),
            "preserves": calibrator.preserves,
            "translation_invariant": calibrator.translation_invariant,
            "calibration_ids": fitted.calibration_ids,
            "validation_ids": fitted.validation_ids,
        }
    )
