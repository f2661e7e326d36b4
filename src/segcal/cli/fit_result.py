"""What ``segcal fit`` says: the comparison, the calibrator, and how far it can be relied on."""

from pathlib import Path

from segcal.cases.check import ENOUGH_CASES
from segcal.cli.console import Output
from segcal.cli.wording import plural, table
from segcal.fitting import Fitted
from segcal.fitting.choice import Candidate, Decision

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}
HEADINGS = ("calibrator", "held-out NLL", "ECE", "NLL against ts", "parameters", "")


def print_fit(output: Output, fitted: Fitted, decision: Decision | None, folder: Path) -> None:
    """Print what was fitted and, if calibrators were compared, how it was chosen."""
    name, certificate = type(fitted.calibrator).__name__, fitted.certificate
    if decision is not None:
        name = decision.chosen.title
        output.say(table(HEADINGS, [_row(one, one == decision.chosen) for one in decision.candidates]), decision.reason)
    output.say(*_sentences(fitted, f"{folder}: {name}"))
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the calibrator says how far it came")
    facts = {key: getattr(fitted.calibrator, key) for key in ("preserves", "translation_invariant")}
    facts |= {key: getattr(fitted, key) for key in ("calibration_ids", "validation_ids")}
    output.document({"calibrator": str(folder), "certificate": certificate.to_dict(), **facts})


def _sentences(fitted: Fitted, title: str) -> list[str]:
    certificate, seen, others = fitted.certificate, len(fitted.calibration_ids), len(fitted.validation_ids)
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    found = [
        f"{title}, {KEPT[fitted.calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}",
        f"fitted on {plural(seen, 'case')}{f', compared on {others} others' if others else ''}; the calibrator "
        "remembers which, and segcal evaluate reports them apart",
    ]
    if "edge" in certificate.details:
        found.append(f"of all strengths of the penalty, held-out cases chose {certificate.details['edge']}")
    if seen + others < ENOUGH_CASES:
        found.append(f"{plural(seen + others, 'case')} are few: with {ENOUGH_CASES} or more, the choice is steadier")
    return found


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
