"""The promises of a calibrator: how each is known, and the largest violation that could be found.

A promise is known *by construction* (no parameters can break it), *by parameters* (a property of the fitted numbers,
checked), or *by measurement* (tried on random voxels built to break it, and on given cases). For a calibrator that
does not make a promise the audit shows why, with a concrete input: two logit vectors with the same softmax and
different results, or a voxel that changes its class.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError
from segcal.cases.parallel import Workers, map_cases
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_regions
from segcal.evaluation.slabs import as_seen
from segcal.evaluation.violations import Measured, adversarial, measure, random_nesting, rise_of, shift_change
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device

# What float64 rounding of z + 1000 can change in a log-probability.
ROUNDING = 1e-6
# What a region's calibrator keeps, in words.
KEPT = "where it is on"


@dataclass(frozen=True)
class Finding:
    """What is known about one promise.

    Attributes:
        promise: "offset" (translation invariance), "decision" (argmax or order), or "nesting" of regions.
        promised: whether the calibrator makes it; for "decision", "argmax" or "order".
        holds: whether it was found to hold: for a promise not made, whether a violation was found all the same.
        how: "construction", "parameters" or "measurement".
        statement: the finding in words.
        violation: the largest violation on random voxels: change of a log-probability, or rise above the winner.
        measured: the same on the given cases, or None.
        example: an input that shows the violation, or None.
    """

    promise: str
    promised: bool | str
    holds: bool
    how: str
    statement: str
    violation: float
    measured: float | None = None
    example: dict[str, Any] | None = None


@dataclass(frozen=True)
class Audit:
    """The findings, and what was looked at.

    Attributes:
        calibrator: its name in the registry, or that of its class.
        findings: one per promise.
        voxels: how many voxels of given cases were tried.
        flips: how many of them changed their class, or None without cases.
        passed: whether every promise that is made holds.
    """

    calibrator: str
    findings: tuple[Finding, ...]
    voxels: int = 0
    flips: int | None = None
    passed: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        made = any(finding.promised for finding in self.findings)
        verdict = "every promise holds" if made else "makes no promise"
        lines = [f"{self.calibrator}: {verdict if self.passed else 'A PROMISE IS BROKEN'}"]
        for finding in self.findings:
            mark = "ok  " if finding.holds else ("FAIL" if finding.promised else "none")
            lines.append(f"  [{mark}] {finding.statement}")
            lines += [f"         {key}: {value}" for key, value in (finding.example or {}).items()]
        if self.flips is not None:
            lines.append(f"  on the given cases: {self.flips} of {self.voxels} voxels changed their class")
        return "\n".join(lines)


@typed
def audit(
    calibrator: Calibrator | Fitted,
    cases: Any = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[], None] | None = None,
    device: str | torch.device | None = None,
    **declared: Any,
) -> Audit:
    """Examine the promises of a calibrator.

    Args:
        calibrator: fitted or not.
        cases: cases to try it on, or arrays as :func:`segcal.cases.as_cases` takes them; labels are not needed.
        workers: how many processes try cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called when a case is done.
        device: where to compute; where the calibrator is, if not given.
        declared: what is known of arrays, such as `kind`.

    >>> from segcal import make_calibrator
    >>> print(audit(make_calibrator("ts", 3)))
    ts: every promise holds
      [ok  ] independent of the logit offset, by construction; largest change under shifts up to 1000: 0
      [ok  ] keeps the order of the classes, because the inverse temperature is positive; largest rise found: 0
    """
    calibrator = calibrator.calibrator if isinstance(calibrator, Fitted) else calibrator
    calibrator = calibrator if device is None else calibrator.to(check_device(device))
    cases = None if cases is None else as_seen(as_cases(cases, **declared), calibrator)
    if cases is not None:
        check_regions(calibrator, cases)
    if cases is not None and cases.num_classes != calibrator.num_classes:
        raise InputError(
            f"the calibrator has {calibrator.num_classes} classes, but the cases have {cases.num_classes}. "
            "Use the cases of the model it was fitted for."
        )
    tried = Measured()
    for _, found in () if cases is None else map_cases(cases, partial(measure, calibrator), workers, failed):
        tried = tried.with_others(found)
        if progress is not None:
            progress()
    logits = adversarial(2 if isinstance(calibrator, PerRegion) else calibrator.num_classes)
    findings: tuple[Finding, ...]
    if isinstance(calibrator, PerRegion):
        findings = (*_by_region(calibrator, logits, tried), _nesting(calibrator, tried))
    else:
        findings = (_offset(calibrator, logits, tried), _decision(calibrator, logits, tried))
    return Audit(
        calibrator=calibrator.name,
        findings=findings,
        voxels=tried.voxels,
        flips=None if cases is None else tried.flips,
        passed=all(finding.holds for finding in findings if finding.promised),
    )


def _by_region(calibrator: PerRegion, logits: Tensor, tried: Measured) -> Iterator[Finding]:
    """Yield what is known of each region: its two classes, off and on, have no offset to promise anything about."""
    for region, own in calibrator.each.items():
        found = _decision(own, logits, tried)
        words = found.statement.replace("the order of the classes", KEPT).replace("the winning class", KEPT)
        yield replace(found, statement=f"{region}: {words}")


def _nesting(calibrator: PerRegion, tried: Measured) -> Finding:
    promised = calibrator.preserves is not None
    pairs = len(calibrator.regions.nested)
    rise = random_nesting(calibrator)
    worst = max(rise, tried.turned)
    if promised:
        text = f"keeps regions nested where they were ({pairs} pairs), by construction; largest rise found: {worst:.2g}"
    else:
        text = f"does not promise to keep regions nested ({pairs} pairs); largest rise found: {worst:.2g}"
    how = "construction" if promised else "measurement"
    measured = tried.turned if tried.voxels else None
    return Finding("nesting", promised, worst <= 0, how, text, rise, measured)


def _offset(calibrator: Calibrator, logits: Tensor, tried: Measured) -> Finding:
    change, example = shift_change(calibrator, logits)
    evidence = calibrator.evidence().get("offset")
    promised = calibrator.translation_invariant
    worst = max(change, tried.change)
    broken = worst > ROUNDING or (evidence is not None and promised and evidence.violation > 0)
    how = "construction" if promised and evidence is None else "parameters" if evidence is not None else "measurement"
    if promised:
        known = "by construction" if evidence is None else f"because {evidence.property}"
        text = f"independent of the logit offset, {known}; largest change under shifts up to 1000: {worst:.2g}"
    elif broken:
        why = "" if evidence is None else f", as not {evidence.property}: they differ by {evidence.violation:.3g}"
        text = f"depends on the logit offset{why}; largest change of a log-probability found: {worst:.3g}"
    else:
        text = "does not promise independence of the logit offset, but no dependence was found"
    measured = tried.change if tried.voxels else None
    return Finding("offset", promised, not broken, how, text, change, measured, example if broken else None)


def _decision(calibrator: Calibrator, logits: Tensor, tried: Measured) -> Finding:
    kept = calibrator.preserves
    rise, example = rise_of(calibrator, logits, kept or "argmax")
    evidence = calibrator.evidence().get("decision")
    off = 0.0 if evidence is None else evidence.violation
    broken = max(rise, tried.rise) > 0 or off > 0
    what = "the order of the classes" if kept == "order" else "the winning class"
    if kept and evidence is not None and off > 0:
        text = f"should keep {what}, but not so that {evidence.property}: off by {off:.3g}"
    elif kept:
        known = "by construction" if evidence is None else f"because {evidence.property}"
        text = f"keeps {what}, {known}; largest rise found: {max(rise, tried.rise):.2g}"
    elif broken:
        text = "does not keep the winning class; a voxel that changes its class:"
    else:
        text = f"does not promise to keep the winning class, but none of {len(logits)} random voxels changed"
    how = "construction" if kept and evidence is None else "parameters" if kept else "measurement"
    measured = tried.rise if tried.voxels else None
    return Finding("decision", kept or False, not broken, how, text, rise, measured, example if broken else None)
