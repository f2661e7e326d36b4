"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse
from pathlib import Path

import segcal
from segcal.calibrators import make_calibrator
from segcal.cases.checking import ENOUGH_CASES
from segcal.cli.console import Output
from segcal.cli.fit_options import add as add
from segcal.cli.fit_options import divide_cases
from segcal.cli.reading import open_folders, split_paths
from segcal.cli.wording import plural, table
from segcal.fitting import FitConfig, Fitted
from segcal.fitting.artifact import check_place
from segcal.fitting.choice import Candidate, Decision
from segcal.fitting.contest import compare, read_poolings
from segcal.fitting.eligible import candidates
from segcal.fitting.fit import fit_to, read_data
from segcal.fitting.progress import Progress
from segcal.pooling import BEST
from segcal.target import claim_beside

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")
KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}


def run(args: argparse.Namespace) -> int:
    """Fit, save and print."""
    check_place(args.output, args.overwrite)
    output = Output(args.json)
    with claim_beside(args.output):
        fitted, decision = _fit(args, output)
        segcal.save(fitted, args.output, args.overwrite)
    if decision is not None:
        rows = [_row(candidate, candidate == decision.chosen) for candidate in decision.candidates]
        output.say(table(["calibrator", "held-out NLL", "ECE", "NLL against ts", "parameters", ""], rows))
        output.say(decision.reason)
    _print(output, fitted, type(fitted.calibrator).__name__ if decision is None else decision.chosen.title, args.output)
    return output.finish()


def _fit(args: argparse.Namespace, output: Output) -> tuple[Fitted, Decision | None]:
    cases = open_folders(args, *split_paths(args.paths), pooling=BEST)
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


def _print(output: Output, fitted: Fitted, name: str, folder: Path) -> None:
    certificate, calibrator = fitted.certificate, fitted.calibrator
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    others = f", compared on {len(fitted.validation_ids)} others" if fitted.validation_ids else ""
    output.say(
        f"{folder}: {name}, {KEPT[calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}",
        f"fitted on {plural(len(fitted.calibration_ids), 'case')}{others}; the calibrator remembers which, and segcal "
        "evaluate reports them apart",
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
