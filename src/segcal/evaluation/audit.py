"""The promises of a calibrator: how each is known, and the largest violation that could be found.

A promise is known *by construction* if no parameters can break it, or *by parameters* if a property of the fitted
numbers was checked. It is known *by measurement* if it was tried on given cases and on random voxels built to break it.
For a calibrator that does not make a promise the audit shows a concrete input. It is two logit vectors with the same
softmax and different results, or a voxel that changes its class.
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
from segcal.cases.base import Case, CaseError
from segcal.cases.parallel import Workers, map_cases
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_regions
from segcal.evaluation.slabs import as_seen, score_slabs
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.numerics import winner
from segcal.types import Context

# What float64 rounding of z + 1000 can change in a log-probability.
ROUNDING = 1e-6
# What a region's calibrator keeps, in words.
KEPT = "where it is on"
# Random voxels tried, and how far their logits are shifted.
TRIED = 20_000
SHIFTS = (1.0, -30.0, 1000.0)
# Logits are rounded to this grid before they are shifted, so that z + 1000 is exact and cannot make or break ties.
GRID = 2.0**-30
# Logits of one step through a case.
STEP_VALUES = 1 << 22


@dataclass(frozen=True)
class Measured:
    """The largest violations on given cases: of the offset (`change`), of the decision (`rise`), of nesting."""

    voxels: int = 0
    flips: int = 0
    change: float = 0.0
    rise: float = 0.0
    turned: float = 0.0

    def with_others(self, other: "Measured") -> "Measured":
        """Return what was measured on both."""
        worst = [max(getattr(self, name), getattr(other, name)) for name in ("change", "rise", "turned")]
        return Measured(self.voxels + other.voxels, self.flips + other.flips, *worst)


@dataclass(frozen=True)
class Finding:
    """The finding about one promise.

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
    example: dict[str, object] | None = None


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

    def to_dict(self) -> dict[str, object]:
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
    findings: tuple[Finding, ...]
    if isinstance(calibrator, PerRegion):
        findings = (*_by_region(calibrator, adversarial(2), tried), _nesting(calibrator, tried))
    else:
        logits = adversarial(calibrator.num_classes)
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


def measure(calibrator: Calibrator, case: Case) -> Measured:
    """Try one case in float64: all of it for flips; shifts on its first voxels, or on all if they see each other."""
    if isinstance(calibrator, PerRegion):
        return _measure_regions(calibrator, case)
    found, moved = Measured(), None
    if calibrator.pointwise:
        first = case.logits.reshape(len(case.logits), -1)[:, :TRIED].T.double()
        found = Measured(change=shift_change(calibrator, first)[0])
    else:
        shift = torch.rand((1, *case.logits.shape[1:]), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        moved = score_slabs(calibrator, case, torch.float64, 1000 * shift, STEP_VALUES)
    for _, logits, scores in score_slabs(calibrator, case, torch.float64, values=STEP_VALUES):
        above = scores.amax(1) - scores.gather(1, winner(logits)[:, None])[:, 0]
        rises = _reversal(logits, scores) if calibrator.preserves == "order" else above
        change = 0.0 if moved is None else (next(moved).scores.log_softmax(1) - scores.log_softmax(1)).abs().max()
        found = found.with_others(Measured(above.numel(), int((above > 0).sum()), float(change), float(rises.max())))
    return found


def _measure_regions(calibrator: PerRegion, case: Case) -> Measured:
    found = Measured()
    for _, logits, odds in score_slabs(calibrator, case, torch.float64, values=STEP_VALUES):
        flipped = (odds > 0) != (logits > 0)
        rise = float(torch.where(flipped, odds.abs(), 0.0).max())
        turned = nesting_violation(calibrator, logits, odds)
        found = found.with_others(Measured(flipped[:, 0].numel(), int(flipped.any(1).sum()), 0.0, rise, turned))
    return found


def nesting_violation(calibrator: PerRegion, logits: Tensor, odds: Tensor) -> float:
    """Return by how much an inner region stands above its outer one where it did not before."""
    pairs = calibrator.regions.nested
    rises = [(odds[:, i] - odds[:, o])[logits[:, i] <= logits[:, o]].clamp(min=0) for i, o in pairs]
    return max((float(rise.max()) for rise in rises if rise.numel()), default=0.0)


@torch.no_grad()
def random_nesting(calibrator: PerRegion) -> float:
    """Return the same on random voxels that are built to break it: spread out, and with regions that almost tie."""
    logits, context = _as_taken(calibrator, adversarial(calibrator.num_classes))
    regions = calibrator.num_classes
    if context.disagreement is not None:
        context = context._replace(disagreement=torch.stack([context.disagreement] * regions, dim=1))
    return nesting_violation(calibrator, logits, calibrator.scores(logits, context))


def adversarial(num_classes: int) -> Tensor:
    """Return voxels ``(n, classes)`` that are easy to break: spread out, and with leaders that almost tie."""
    generator = torch.Generator().manual_seed(0)
    spread = 5 * torch.randn(TRIED, num_classes, generator=generator, dtype=torch.float64)
    tied = spread.clone()
    leaders = tied.topk(min(3, num_classes), dim=1).indices
    nearly = tied.amax(1, keepdim=True) + 1e-9 * torch.rand(leaders.shape, generator=generator, dtype=torch.float64)
    return torch.cat([spread, tied.scatter(1, leaders, nearly), 0.1 * spread])


@torch.no_grad()
def shift_change(calibrator: Calibrator, logits: Tensor) -> tuple[float, dict[str, object]]:
    """Return the largest change of a log-probability under a shift, and the voxel where probabilities change most."""
    logits = (logits / GRID).round() * GRID
    shaped, context = _as_taken(calibrator, logits)
    before = calibrator(shaped, context)
    worst, clearest, example = 0.0, -1.0, {}
    for shift in SHIFTS:
        after = calibrator(shaped + shift, context)
        worst = max(worst, float((after - before).abs().max()))
        change = (after.exp() - before.exp()).abs().amax(1).reshape(-1)
        index = int(change.argmax())
        if float(change[index]) > clearest:
            clearest = float(change[index])
            first, second = (x.exp().movedim(1, -1).reshape(logits.shape)[index] for x in (before, after))
            example = {
                "logits": _digits(logits[index]),
                "the same plus": shift,
                "probabilities": _digits(first),
                "and after the shift": _digits(second),
            }
    return worst, example


@torch.no_grad()
def rise_of(calibrator: Calibrator, logits: Tensor, kept: str) -> tuple[float, dict[str, object]]:
    """Return by how much a class rises above one that was above it, and the clearest voxel that shows it."""
    scores = calibrator.scores(*_as_taken(calibrator, logits)).movedim(1, -1).reshape(logits.shape).to(logits.device)
    rises = _reversal(logits, scores)
    if kept == "argmax":
        rises = scores.amax(1) - scores.gather(1, winner(logits)[:, None])[:, 0]
    leaders = logits.topk(2, dim=1).values
    index = int(torch.where(rises > 0, leaders[:, 0] - leaders[:, 1], -1.0).argmax())
    example = {
        "logits": _digits(logits[index]),
        "class before": int(winner(logits[index : index + 1])),
        "class after": int(winner(scores[index : index + 1])),
    }
    return float(rises.max()), example


def _reversal(logits: Tensor, scores: Tensor) -> Tensor:
    """Return, per voxel, the largest rise of a score in descending order of the logits."""
    ordered = scores.gather(1, logits.argsort(dim=1, descending=True, stable=True))
    return (ordered[:, 1:] - ordered[:, :-1]).clamp(min=0).flatten(1).amax(1)


def _as_taken(calibrator: Calibrator, logits: Tensor) -> tuple[Tensor, Context]:
    """Return voxels as a calibrator takes them, where it is; as an image with a blank image, if it looks at such."""
    logits = logits.to(next(calibrator.parameters(), logits).device)
    if not calibrator.pointwise:
        side = next(n for n in range(int(len(logits) ** 0.5), 0, -1) if len(logits) % n == 0)
        logits = logits.T.reshape(1, logits.shape[1], side, -1)
    channels = calibrator.options.get("image_channels", 0)
    blank = logits.new_zeros(len(logits), channels, *logits.shape[2:])
    more = torch.linspace(0, 1, logits[:, 0].numel()).to(logits).reshape(logits[:, 0].shape)
    return logits, Context(blank if channels else None, more if calibrator.sees_members else None)


def _digits(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
