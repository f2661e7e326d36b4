"""By how much a calibrator breaks its promises: under a shift of a voxel's logits, and in the order of its classes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.evaluation.slabs import score_slabs
from segcal.numerics import winner
from segcal.types import Context

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
def shift_change(calibrator: Calibrator, logits: Tensor) -> tuple[float, dict[str, Any]]:
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
def rise_of(calibrator: Calibrator, logits: Tensor, kept: str) -> tuple[float, dict[str, Any]]:
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
    """Return voxels as a calibrator takes them, where it is; as an image with a blank picture, if it looks at such."""
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
