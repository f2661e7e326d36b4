"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse
from pathlib import Path
from typing import Any

import segcal
from segcal.calibrators import CALIBRATORS, make_calibrator
from segcal.cases import Cases, FileCases, load_split, save_split
from segcal.cases.check import ENOUGH_CASES
from segcal.cli.console import Output, plural, table
from segcal.cli.parsing import voxels
from segcal.cli.reading import common_options, open_folders, reading_options, split_paths
from segcal.errors import InputError
from segcal.fitting import FitConfig, Fitted
from segcal.fitting.artifact import check_place
from segcal.fitting.choice import Candidate, Decision, candidates
from segcal.fitting.contest import compare, read_poolings
from segcal.fitting.division import divide
from segcal.fitting.fit import fit_to
from segcal.fitting.progress import Progress
from segcal.fitting.request import read_data
from segcal.pooling import BEST
from segcal.target import claim_beside

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="fit a calibrator; by default the best one that keeps the mask",
        usage="segcal fit PREDICTIONS... LABELS -o CAL [options]",
        description="Compare calibrators on cases that are held out in turn, fit the winner to all cases, save it.\n"
        "By default every calibrator competes that works voxel by voxel, ignores the logit offset and\n"
        "keeps the mask, with both poolings of an ensemble. One that is not clearly better than a\n"
        "temperature (ts) is not taken.",
        epilog="examples:\n  segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255\n"
        "  segcal fit member_*/ labels/ -o calibrator/ --kind logits --pool mean_logits --calibrator ts",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS LABELS", help="folders; the last one holds the labels"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CAL", help="where the calibrator goes")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a calibrator that is damaged or not of segcal"
    )
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
        "--val-share",
        type=float,
        metavar="SHARE",
        help="compare on this share of the cases alone; default: hold out whole groups of all cases in turn",
    )
    data.add_argument(
        "--test-share", type=float, default=0, metavar="SHARE", help="left unseen, for segcal evaluate (default 0)"
    )
    data.add_argument("--seed", type=int, default=0, help="of the division and of the voxel sample (default 0)")
    data.add_argument("--splits", type=Path, metavar="FILE", help="splits.json: used if it is there, else written")
    data.add_argument("--validation", type=Path, nargs="+", metavar="FOLDER", help="predictions for validation alone")
    data.add_argument("--validation-labels", type=Path, metavar="FOLDER", help="their labels; default: LABELS")
    fit = parser.add_argument_group("how to fit")
    fit.add_argument("--voxels", type=voxels, default=20_000, metavar="N|all", help="of each case (default 20000)")
    fit.add_argument("--lam", type=float, help="strength on off-diagonal weights; default: chosen on held-out cases")
    fit.add_argument("--mu", type=float, help="strength on biases; default: chosen on held-out cases")
    fit.add_argument("--method", choices=["exact", "paper"], default="exact", help="paper: Adam and a search")
    fit.add_argument("--verify", action="store_true", help="also give the residual on all voxels")
    return parser


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    check_place(args.output, args.overwrite)
    with claim_beside(args.output):
        return _fit(args)


def _fit(args: argparse.Namespace) -> int:
    output = Output(args.json)
    cases = open_folders(args, *split_paths(args.paths), pool=BEST)
    named = args.calibrator is not None
    names = [args.calibrator] if named else candidates(cases.num_classes, args.preserve, args.allow_offset_dependent)
    for name in names:
        for pooling in cases.poolings:
            cases.pooled(pooling).require_offset(name, make_calibrator(name, cases.num_classes).translation_invariant)
    calibration, validation = _divide(args, cases)
    settings = {name: getattr(args, name) for name in ("lam", "mu", "voxels", "seed", "method", "verify")}
    config, failed = FitConfig(**settings), None if args.strict else output.failed
    decision = None
    with Progress("fitting") as progress:
        if named and len(cases.poolings) == 1:
            data = read_data(calibration, validation, config, progress, args.workers, failed, suspect=True)
            fitted = fit_to(args.calibrator, data, config, args.device, progress)
        else:
            voxels = read_poolings(calibration, validation, config, progress, args.workers, failed)
            fitted, decision = compare(names, voxels, config, args.device, progress)
    segcal.save(fitted, args.output, args.overwrite)
    _print(output, fitted, decision, args.output)
    return output.finish()


def _divide(args: argparse.Namespace, cases: FileCases) -> tuple[Cases, Cases | None]:
    if args.validation is not None:
        own = {path.resolve() for path in split_paths(args.paths)[0]}
        shared = next((path for path in args.validation if path.resolve() in own), None)
        if shared is not None:
            raise InputError(
                f"--validation is {shared}, but calibration cases cannot judge the fit. Leave it out to have the cases "
                "divided."
            )
        labels = args.validation_labels or split_paths(args.paths)[1]
        return cases, open_folders(args, args.validation, labels, pool=BEST)
    if args.splits is not None and args.splits.exists():
        split = load_split(cases, args.splits)
    else:
        split = divide(cases, args.val_share or 0.0, args.test_share, args.seed)
        if args.splits is not None:
            save_split(split, args.splits, args.seed)
    return split.cal, split.val if len(split.val) else None


def _print(output: Output, fitted: Fitted, decision: Decision | None, folder: Path) -> None:
    certificate, calibrator = fitted.certificate, fitted.calibrator
    if decision is not None:
        rows = [_row(candidate, candidate == decision.chosen) for candidate in decision.candidates]
        output.say(table(["calibrator", "held-out NLL", "ECE", "NLL against ts", "parameters", ""], rows))
        output.say(decision.reason)
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    name = type(calibrator).__name__ if decision is None else decision.chosen.title
    output.say(
        f"{folder}: {name}, {KEPT[calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}",
        f"fitted on {plural(len(fitted.calibration_ids), 'case')}{_validated(fitted)}; the calibrator remembers which, "
        "and segcal evaluate reports them apart",
    )
    if "edge" in certificate.details:
        output.say(f"of all strengths of the penalty, held-out cases chose {certificate.details['edge']}")
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


def _validated(fitted: Fitted) -> str:
    return f", compared on {len(fitted.validation_ids)} others" if fitted.validation_ids else ""


def _row(candidate: Candidate, chosen: bool) -> list[str]:
    against = candidate.against
    error = "" if against is None or against.error is None else f" ± {against.error:.5f}"
    return [
        f"{candidate.title} <-" if chosen else candidate.title,
        "" if candidate.nll is None else f"{candidate.nll:.5f}",
        "" if candidate.ece is None else f"{candidate.ece:.4f}",
        "" if against is None else f"{against.mean:+.5f}{error}",
        f"{candidate.parameters:,}",
        candidate.verdict,
    ]
