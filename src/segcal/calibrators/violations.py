"""By how much a calibrator breaks its promises on given logits: the measuring part of an audit.

Two things are measured: how much a log-probability changes when the logits of a voxel are shifted together, and by how
much a class rises above one that was above it.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.look_around import tiled_scores
from segcal.numerics import winner
from segcal.types import Context

# Random voxels tried, and how far their logits are shifted.
TRIED = 20_000
SHIFTS = (1.0, -30.0, 1000.0)
# Logits are rounded to this grid before they are shifted, so that z + 1000 is exact and cannot make or break ties.
GRID = 2.0**-30
# Voxels of one step through a case; values of one step, where voxels see each other.
STEP = 1 << 18
STEP_VALUES = 1 << 22


@dataclass(frozen=True)
class Measured:
    """The largest violations on given cases.

    Attributes:
        voxels: how many were tried.
        flips: how many changed their class.
        change: the largest change of a log-probability under a shift.
        rise: the largest rise of a class above one that was above it.
    """

    voxels: int = 0
    flips: int = 0
    change: float = 0.0
    rise: float = 0.0

    def change_or_none(self) -> float | None:
        """Return the change, if anything was tried."""
        return None if self.voxels == 0 else self.change

    def with_others(self, other: Self) -> "Measured":
        """Return what was measured on both."""
        worst = max(self.change, other.change), max(self.rise, other.rise)
        return Measured(self.voxels + other.voxels, self.flips + other.flips, *worst)

    @classmethod
    @torch.no_grad()
    def of(cls, calibrator: Calibrator, logits: Tensor, image: Tensor | None = None) -> "Measured":
        """Try one case: all of it for flips; the shift on what fits one step."""
        if not calibrator.pointwise:
            batch = logits[None].double()
            picture = None if image is None else Context(image=image[None].double())
            shift = 1000 * torch.rand(batch[:, :1].shape, dtype=batch.dtype, generator=torch.Generator().manual_seed(0))
            scores = tiled_scores(calibrator, batch, picture, STEP_VALUES)
            moved = tiled_scores(calibrator, batch + shift, picture, STEP_VALUES)
            change = (torch.log_softmax(moved, dim=1) - torch.log_softmax(scores, dim=1)).abs().max()
            return _counted(calibrator, batch, scores).with_others(cls(change=float(change)))
        flat = logits.reshape(len(logits), -1)
        found = cls()
        for start in range(0, flat.shape[1], STEP):
            voxels = flat[:, start : start + STEP].T.double()
            found = found.with_others(_counted(calibrator, voxels, calibrator.scores(voxels)))
        return found.with_others(cls(change=shift_change(calibrator, flat[:, :TRIED].T.double())[0]))


def _counted(calibrator: Calibrator, logits: Tensor, scores: Tensor) -> Measured:
    first = winner(logits)[:, None]
    above = scores.amax(1, keepdim=True) - scores.gather(1, first)
    rises = _reversal(logits, scores) if calibrator.preserves == "order" else above
    return Measured(above.numel(), int((above > 0).sum()), rise=float(rises.max()))


def adversarial(num_classes: int) -> Tensor:
    """Return voxels ``(n, classes)`` that are easy to break: spread out, and with leaders that almost tie."""
    generator = torch.Generator().manual_seed(0)
    spread = 5 * torch.randn(TRIED, num_classes, generator=generator, dtype=torch.float64)
    tied = spread.clone()
    leaders = tied.topk(min(3, num_classes), dim=1).indices
    nearly = tied.amax(1, keepdim=True) + 1e-9 * torch.rand(leaders.shape, generator=generator, dtype=torch.float64)
    tied = tied.scatter(1, leaders, nearly)
    return torch.cat([spread, tied, 0.1 * spread])


@torch.no_grad()
def shift_change(calibrator: Calibrator, logits: Tensor) -> tuple[float, dict[str, Any]]:
    """Return the largest change of a log-probability under a shift, and the voxel where probabilities change most."""
    logits = (logits / GRID).round() * GRID
    shaped = _as_image(calibrator, logits)
    picture = _blank_image(calibrator, shaped)
    before = calibrator(shaped, picture)
    worst, clearest, example = 0.0, -1.0, {}
    for shift in SHIFTS:
        after = calibrator(shaped + shift, picture)
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
    shaped = _as_image(calibrator, logits)
    scores = calibrator.scores(shaped, _blank_image(calibrator, shaped)).movedim(1, -1).reshape(logits.shape)
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


def _blank_image(calibrator: Calibrator, shaped: Tensor) -> Context | None:
    """Return an image for a calibrator that sees one; what is in it has no part in the promises."""
    channels = calibrator.options.get("image_channels", 0)
    return Context(image=shaped.new_zeros(len(shaped), channels, *shaped.shape[2:])) if channels else None


def _digits(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
