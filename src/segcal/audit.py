"""The promises of a calibrator: how each is known, and the largest violation that could be found.

A promise is known *by construction* (no parameters can break it), *by parameters* (a property of the fitted numbers,
checked), or *by measurement* (tried on random voxels built to break it, and on given cases). For a calibrator that
does not make a promise the audit shows why, with a concrete input: two logit vectors with the same softmax and
different results, or a voxel that changes its class.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import registry_entry
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.errors import InputError
from segcal.numerics import winner

# Random voxels tried, and how far their logits are shifted.
TRIED = 20_000
SHIFTS = (1.0, -30.0, 1000.0)
# What float64 rounding of z + 1000 can change in a log-probability.
ROUNDING = 1e-6
# Logits are rounded to this grid before they are shifted, so that z + 1000 is exact and cannot make or break ties.
GRID = 2.0**-30
# Voxels of one step through a case.
STEP = 1 << 18


@dataclass(frozen=True)
class Finding:
    """What is known about one promise.

    Attributes:
        promise: "offset" (translation invariance) or "decision" (argmax or order).
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
        findings: one a promise.
        voxels: how many voxels of given cases were tried.
        flips: how many of them changed their class, or None without cases.
        passed: whether every promise that is made holds.
    """

    calibrator: str
    findings: tuple[Finding, ...]
    voxels: int = 0
    flips: int | None = None
    passed: bool = field(default=True)

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
            if finding.example is not None:
                lines += [f"         {key}: {value}" for key, value in finding.example.items()]
        if self.flips is not None:
            lines.append(f"  on the given cases: {self.flips} of {self.voxels} voxels changed their class")
        return "\n".join(lines)


def audit(calibrator: Calibrator, cases: Cases | None = None) -> Audit:
    """Examine the promises of a calibrator.

    Args:
        calibrator: fitted or not.
        cases: cases to try it on; labels are not needed.

    >>> from segcal import make_calibrator
    >>> print(audit(make_calibrator("ts", 3)))
    ts: every promise holds
      [ok  ] independent of the logit offset, by construction; largest change under shifts up to 1000: 0
      [ok  ] keeps the order of the classes, because the inverse temperature is positive; largest rise found: 0
    """
    if not isinstance(calibrator, Calibrator):
        raise InputError(
            f"calibrator is {type(calibrator).__name__}, but a Calibrator is needed. Pass fitted.calibrator."
        )
    if cases is not None and cases.num_classes != calibrator.num_classes:
        raise InputError(
            f"the calibrator has {calibrator.num_classes} classes, but the cases have {cases.num_classes}. "
            "Use the cases of the model it was fitted for."
        )
    tried = _Measured()
    if cases is not None:
        for case in cases:
            tried.add(calibrator, case.logits, case.image)
    logits = _adversarial(calibrator.num_classes)
    entry = registry_entry(calibrator)
    findings = (_offset(calibrator, logits, tried), _decision(calibrator, logits, tried))
    return Audit(
        calibrator=type(calibrator).__name__ if entry is None else entry[0],
        findings=findings,
        voxels=tried.voxels,
        flips=None if cases is None else tried.flips,
        passed=all(finding.holds for finding in findings if finding.promised),
    )


def _offset(calibrator: Calibrator, logits: Tensor, tried: "_Measured") -> Finding:
    change, example = _shift_change(calibrator, logits)
    evidence = calibrator.evidence().get("offset")
    promised = calibrator.translation_invariant
    worst = max(change, tried.change)
    broken = worst > ROUNDING or (evidence is not None and promised and evidence.violation > 0)
    how = "construction" if promised and evidence is None else "parameters" if evidence is not None else "measurement"
    if promised:
        known = "by construction" if evidence is None else f"because {evidence.property}"
        text = f"independent of the logit offset, {known}; largest change under shifts up to 1000: {worst:.2g}"
    else:
        why = "" if evidence is None else f", as not {evidence.property}: they differ by {evidence.violation:.3g}"
        text = f"depends on the logit offset{why}; largest change of a log-probability found: {worst:.3g}"
        if not broken:
            text = "does not promise independence of the logit offset, but no dependence was found"
    return Finding(
        "offset", promised, not broken, how, text, change, tried.change_or_none(), example if broken else None
    )


def _decision(calibrator: Calibrator, logits: Tensor, tried: "_Measured") -> Finding:
    kept = calibrator.preserves
    rise, example = _rise(calibrator, logits, kept or "argmax")
    evidence = calibrator.evidence().get("decision")
    broken = max(rise, tried.rise) > 0 or (evidence is not None and evidence.violation > 0)
    what = "the order of the classes" if kept == "order" else "the winning class"
    if kept:
        known = "by construction" if evidence is None else f"because {evidence.property}"
        text = f"keeps {what}, {known}; largest rise found: {max(rise, tried.rise):.2g}"
        if evidence is not None and evidence.violation > 0:
            text = f"should keep {what}, but not so that {evidence.property}: off by {evidence.violation:.3g}"
    elif broken:
        text = "does not keep the winning class; a voxel that changes its class:"
    else:
        text = f"does not promise to keep the winning class, but none of {len(logits)} random voxels changed"
    how = "construction" if kept and evidence is None else "parameters" if kept else "measurement"
    measured = None if tried.voxels == 0 else tried.rise
    return Finding("decision", kept or False, not broken, how, text, rise, measured, example if broken else None)


class _Measured:
    """The largest violations on given cases."""

    def __init__(self) -> None:
        self.voxels = self.flips = 0
        self.change = self.rise = 0.0

    def change_or_none(self) -> float | None:
        return None if self.voxels == 0 else self.change

    @torch.no_grad()
    def add(self, calibrator: Calibrator, logits: Tensor, image: Tensor | None) -> None:
        """Try one case: all of it for flips; the shift on what fits one step."""
        kept = calibrator.preserves or "argmax"
        if not calibrator.pointwise:
            batch = logits[None].double()
            picture = None if image is None else image[None].double()
            self._count(batch, calibrator.scores(batch, picture), kept)
            shift = 1000 * torch.rand(batch[:, :1].shape, dtype=batch.dtype, generator=torch.Generator().manual_seed(0))
            change = (calibrator(batch + shift, picture) - calibrator(batch, picture)).abs().max()
            self.change = max(self.change, float(change))
            return
        flat = logits.reshape(len(logits), -1)
        for start in range(0, flat.shape[1], STEP):
            voxels = flat[:, start : start + STEP].T.double()
            self._count(voxels, calibrator.scores(voxels), kept)
            if start == 0:
                self.change = max(self.change, _shift_change(calibrator, voxels[:TRIED])[0])

    def _count(self, logits: Tensor, scores: Tensor, kept: str) -> None:
        first = winner(logits)[:, None]
        above = scores.amax(1, keepdim=True) - scores.gather(1, first)
        self.voxels += above.numel()
        self.flips += int((above > 0).sum())
        self.rise = max(self.rise, float(above.max()) if kept == "argmax" else float(_reversal(logits, scores).max()))


def _adversarial(num_classes: int) -> Tensor:
    """Return voxels ``(n, classes)`` that are easy to break: spread out, and with leaders that almost tie."""
    generator = torch.Generator().manual_seed(0)
    spread = 5 * torch.randn(TRIED, num_classes, generator=generator, dtype=torch.float64)
    tied = spread.clone()
    leaders = tied.topk(min(3, num_classes), dim=1).indices
    nearly = tied.amax(1, keepdim=True) + 1e-9 * torch.rand(leaders.shape, generator=generator, dtype=torch.float64)
    tied = tied.scatter(1, leaders, nearly)
    return torch.cat([spread, tied, 0.1 * spread])


@torch.no_grad()
def _shift_change(calibrator: Calibrator, logits: Tensor) -> tuple[float, dict[str, Any]]:
    """Return the largest change of a log-probability under a shift, and the voxel where probabilities change most."""
    logits = (logits / GRID).round() * GRID
    shaped = _as_image(calibrator, logits)
    before = calibrator(shaped)
    worst, clearest, example = 0.0, -1.0, {}
    for shift in SHIFTS:
        after = calibrator(shaped + shift)
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
def _rise(calibrator: Calibrator, logits: Tensor, kept: str) -> tuple[float, dict[str, Any]]:
    """Return by how much a class rises above one that was above it, and the clearest voxel that shows it."""
    shaped = _as_image(calibrator, logits)
    scores = calibrator.scores(shaped).movedim(1, -1).reshape(logits.shape)
    rises = _reversal(logits, scores)
    if kept == "argmax":
        rises = (scores.amax(1, keepdim=True) - scores.gather(1, winner(logits)[:, None]))[:, 0]
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


def _as_image(calibrator: Calibrator, logits: Tensor) -> Tensor:
    """Return voxels as a calibrator takes them: as they are, or laid out as one image if it sees neighbours."""
    if calibrator.pointwise:
        return logits
    side = next(n for n in range(int(len(logits) ** 0.5), 0, -1) if len(logits) % n == 0)
    return logits.T.reshape(1, logits.shape[1], side, -1)


def _digits(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
