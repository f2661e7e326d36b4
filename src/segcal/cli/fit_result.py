"""What ``segcal fit`` says: the comparison, the calibrator, what it rests on, and how far it can be relied on."""

from typing import Any

from segcal.cases.check import ENOUGH_CASES
from segcal.cli.call import Call
from segcal.cli.console import Output, plural, table
from segcal.fitting import Fitted
from segcal.fitting.scores import CASE_BINS

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}
ECE_NOTE = f"* is taken. ECE: {CASE_BINS} bins, mean over cases"
HEADINGS = ("calibrator", "NLL", "ECE", "NLL against ts", "parameters")
# Of many classes, those in the fewest groups are named.
MOST_NAMED = 12


def show_fit(call: Call, fitted: Fitted) -> dict[str, Any]:
    """Print what was fitted and, if calibrators were compared, how it was chosen; return the document."""
    output, name, certificate = call.output, fitted.calibrator.name, fitted.certificate
    details, pooling = certificate.details, fitted.pooling
    if "regions" in details:
        _print_regions(output, details["regions"], pooling)
    if "candidates" in details:
        name = _title(details["chosen"], pooling)
        output.say("on held-out cases:", table(HEADINGS, _rows(details, pooling)), ECE_NOTE)
        output.say(*_not_taken(details, pooling), details["reason"])
    output.say(*_sentences(fitted, f"{call.args.output}: {name}"))
    print_evidence(output, fitted)
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the calibrator says how far it came")
    facts = {key: getattr(fitted.calibrator, key) for key in ("preserves", "translation_invariant")}
    facts |= {key: getattr(fitted, key) for key in ("calibration_ids", "validation_ids")}
    reference = fitted.reference
    facts["trust"] = None if reference is None else {"source": reference.source, "cases": len(reference.cases)}
    return {"calibrator": str(call.args.output), "certificate": certificate.to_dict(), **facts}


def _print_regions(output: Output, regions: dict[str, Any], pooling: str | None) -> None:
    """Print the comparison of every region, and what was fitted to it."""
    rows, reasons = list[list[str]](), list[str]()
    for region, certificate in regions.items():
        details = certificate["details"]
        rows += _rows(details, pooling, f"{region}: ")
        reasons += [f"{region}: {line}" for line in _not_taken(details, pooling)]
        reasons += [f"{region}: {details['reason']}"] if "reason" in details else []
    if rows:
        output.say("on held-out cases:", table(HEADINGS, rows), ECE_NOTE, *reasons)
    output.say("; ".join(f"{region}: NLL {certificate['nll']:.5f}" for region, certificate in regions.items()))


def _rows(details: dict[str, Any], pooling: str | None, region: str = "") -> list[list[str]]:
    """Return the row of every candidate."""
    found = []
    for one in details.get("candidates", ()):
        mean, error = one["against"] or (None, None)
        mark = "*" if _is_chosen(one, details, pooling) else " "
        found.append([
            f"{mark}{region}{_title(one['name'], one['pooling'])}",
            "" if one["nll"] is None else f"{one['nll']:.5f}",
            "" if one["ece"] is None else f"{one['ece']:.4f}",
            "" if mean is None else f"{mean:+.5f}" + ("" if error is None else f" ± {error:.5f}"),
            f"{one['parameters']:,}",
        ])  # fmt: skip
    return found


def _not_taken(details: dict[str, Any], pooling: str | None) -> list[str]:
    """Return why each candidate was not taken, those with the same reason in one line."""
    why: dict[str, list[str]] = {}
    for one in details.get("candidates", ()):
        if not _is_chosen(one, details, pooling) and one["verdict"] != "reference":
            why.setdefault(one["verdict"], []).append(_title(one["name"], one["pooling"]))
    return [f"  {verdict}: {', '.join(titles)}" for verdict, titles in why.items()]


def _is_chosen(candidate: dict[str, Any], details: dict[str, Any], pooling: str | None) -> bool:
    return (candidate["name"], candidate["pooling"]) == (details["chosen"], pooling)


def _title(name: str, pooling: str | None) -> str:
    return name if pooling in (None, "single") else f"{name} ({pooling})"


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


def print_evidence(output: Output, fitted: Fitted) -> None:
    """Print the groups per class and the parts that were held out, and warn of what should not be."""
    certificate, found = fitted.certificate, fitted.certificate.evidence
    if found is not None:
        names = fitted.class_names or [f"class {number}" for number in range(len(found.class_groups))]
        fewest = sorted(range(len(names)), key=lambda number: found.class_groups[number])[:MOST_NAMED]
        counts = list(zip(names, found.class_groups, found.class_voxels, strict=True))
        shown = ", ".join("{} {:,} ({:,})".format(*counts[number]) for number in sorted(fewest))
        rest = "" if len(names) <= MOST_NAMED else f"; all other classes in at least {found.class_groups[fewest[-1]]:,}"
        output.say(f"groups with each class, of {found.groups:,} (and voxels, about): {shown}{rest}")
        if found.sites:
            parts = ", ".join(f"{name} ({plural(count, 'group')})" for name, count in found.sites.items())
            what = "declared sites" if found.declared else "groups clustered by what is predicted"
            output.say(f"also held out, {what}: {parts}")
        for name, weight in found.weights.items():
            output.warn(f"{name} failed and counts {weight:.2f} times: look at its labels and predictions")
        for name, change in found.influence.items():
            output.warn(f"without {name} the temperature would be {change:+.0%}: look at its labels and predictions")
    if certificate.active_bounds:
        several = "; ".join(certificate.active_bounds[:3])
        output.warn(
            f"{plural(len(certificate.active_bounds), 'parameter')} ended at a bound ({several}): the cases alone "
            "do not decide: more cases, or a simpler calibrator, would"
        )
