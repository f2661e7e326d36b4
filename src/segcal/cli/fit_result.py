"""What ``segcal fit`` says: the comparison, the calibrator, and how far it can be relied on."""

from pathlib import Path
from typing import Any

from segcal.cases.check import ENOUGH_CASES
from segcal.cli.console import Output
from segcal.cli.fit_evidence import print_evidence
from segcal.cli.wording import plural, table
from segcal.fitting import Fitted
from segcal.fitting.scores import CASE_BINS

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}
ECE_NOTE = f"* is taken. ECE: {CASE_BINS} bins, mean over cases"
HEADINGS = ("calibrator", "NLL", "ECE", "NLL against ts", "parameters")


def print_fit(output: Output, fitted: Fitted, folder: Path) -> None:
    """Print what was fitted and, if calibrators were compared, how it was chosen."""
    name, certificate = fitted.calibrator.name, fitted.certificate
    if "regions" in certificate.details:
        _print_regions(output, fitted)
    if "candidates" in certificate.details:
        chosen = certificate.details["chosen"], fitted.pooling
        name = _title(*chosen)
        rows = [_row(one, (one["name"], one["pooling"]) == chosen) for one in certificate.details["candidates"]]
        output.say("on held-out cases:", table(HEADINGS, rows), ECE_NOTE)
        output.say(*_not_taken(certificate.details, fitted.pooling), certificate.details["reason"])
    output.say(*_sentences(fitted, f"{folder}: {name}"))
    print_evidence(output, fitted)
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the calibrator says how far it came")
    facts = {key: getattr(fitted.calibrator, key) for key in ("preserves", "translation_invariant")}
    facts |= {key: getattr(fitted, key) for key in ("calibration_ids", "validation_ids")}
    reference = fitted.reference
    facts["trust"] = None if reference is None else {"source": reference.source, "cases": len(reference.cases)}
    output.document({"calibrator": str(folder), "certificate": certificate.to_dict(), **facts})


def _print_regions(output: Output, fitted: Fitted) -> None:
    """Print the comparison of every region, and what was fitted to it."""
    rows, reasons, found = list[list[str]](), list[str](), list[str]()
    for region, certificate in fitted.certificate.details["regions"].items():
        details = certificate["details"]
        for one in details.get("candidates", ()):
            chosen = (one["name"], one["pooling"]) == (details["chosen"], fitted.pooling)
            title, *cells = _row(one, chosen)
            rows.append([f"{title[0]}{region}: {title[1:]}", *cells])
        reasons += [f"{region}: {line}" for line in _not_taken(details, fitted.pooling)]
        if "reason" in details:
            reasons.append(f"{region}: {details['reason']}")
        found.append(f"{region}: NLL {certificate['nll']:.5f}")
    if rows:
        output.say("on held-out cases:", table(HEADINGS, rows), ECE_NOTE, *reasons)
    output.say("; ".join(found))


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


def _not_taken(details: dict[str, Any], pooling: str | None) -> list[str]:
    """Return why each candidate was not taken, those with the same reason in one line."""
    why: dict[str, list[str]] = {}
    for one in details.get("candidates", ()):
        if (one["name"], one["pooling"]) != (details["chosen"], pooling) and one["verdict"] != "reference":
            why.setdefault(one["verdict"], []).append(_title(one["name"], one["pooling"]))
    return [f"  {verdict}: {', '.join(titles)}" for verdict, titles in why.items()]


def _row(candidate: dict[str, Any], chosen: bool) -> list[str]:
    mean, error = candidate["against"] or (None, None)
    against = "" if mean is None else f"{mean:+.5f}" + ("" if error is None else f" ± {error:.5f}")
    return [
        ("*" if chosen else " ") + _title(candidate["name"], candidate["pooling"]),
        "" if candidate["nll"] is None else f"{candidate['nll']:.5f}",
        "" if candidate["ece"] is None else f"{candidate['ece']:.4f}",
        against,
        f"{candidate['parameters']:,}",
    ]


def _title(name: str, pooling: str | None) -> str:
    return name if pooling in (None, "single") else f"{name} ({pooling})"
