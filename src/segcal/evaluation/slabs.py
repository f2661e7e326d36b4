"""The scores of one case in slabs of bounded size: the one way in which a fitted calibrator meets a case.

Slabs are cut along the longest axis of space and overlap by what a voxel can see, so nothing changes but the memory
that is needed: one slab of logits and what the calibrator makes of it, on the calibrator's device and in the type that
is computed in. A calibrator that sees the whole image gets the whole image.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.surroundings import LARGEST_GAP, runner_up_gap
from segcal.cases.base import Case, Cases
from segcal.checks import check_forward
from segcal.numerics import compute_dtype
from segcal.types import Context

AnyCases = TypeVar("AnyCases", bound=Cases)

# Logits of one slab.
STEP_VALUES = 1 << 24


class Slab(NamedTuple):
    """A part of a case, on the calibrator's device.

    Attributes:
        where: its index in ``(classes, *space)``.
        logits: ``(1, classes, *slab)``, as the calibrator saw them.
        scores: the same shape; unnormalised log-probabilities, in which decisions are compared.
    """

    where: tuple[Any, ...]
    logits: Tensor
    scores: Tensor


def as_seen(cases: AnyCases, calibrator: object) -> AnyCases:
    """Return cases that say where their members disagree, if the calibrator must be given that."""
    return cases.with_disagreement() if getattr(calibrator, "sees_members", False) else cases


def calibrated_scores(
    calibrator: Calibrator,
    case: Case,
    device: torch.device | str | None = None,
    values: int | None = None,
    mean_gap: Tensor | None = None,
) -> Tensor:
    """Return the scores ``(classes, *space)`` of a case, on a device; None is where the calibrator is."""
    scores: Tensor | None = None
    for slab in score_slabs(calibrator, case, values=values, mean_gap=mean_gap):
        found = slab.scores[0].to(device)
        if found.shape == case.logits.shape:
            return found
        scores = found.new_empty(case.logits.shape) if scores is None else scores
        scores[slab.where] = found
    assert scores is not None
    return scores


def score_slabs(
    calibrator: Calibrator,
    case: Case,
    dtype: torch.dtype | None = None,
    shift: Tensor | None = None,
    values: int | None = None,
    mean_gap: Tensor | None = None,
) -> Iterator[Slab]:
    """Yield a case slab by slab.

    Args:
        calibrator: on any device.
        case: with the context that the calibrator sees.
        dtype: what to compute in; None is the type of the logits, and float32 for half types.
        shift: ``(1, *space)``, added to the logits in `dtype`.
        values: the logits of one slab; :data:`STEP_VALUES` unless told.
        mean_gap: what is known of the whole image, where the case is a part of one.
    """
    check_forward(case.logits[None], calibrator.num_classes)
    values = STEP_VALUES if values is None else values
    space, total = case.logits.shape[1:], case.logits.numel()
    kind = compute_dtype(case.logits.dtype) if dtype is None else dtype
    reach = calibrator.reach(len(space))
    context = case.context
    if calibrator.sees_image:
        context = context._replace(
            mean_gap=image_gap(calibrator, case.logits, values) if mean_gap is None else mean_gap
        )
    if reach is None or total <= values:
        yield Slab((...,), *_scored(calibrator, case.logits[None], context, shift, kind))
        return
    longest = max(range(len(space)), key=lambda number: space[number])
    axis, size, overlap = longest - len(space), space[longest], reach[longest]  # from the end, where all have space
    step = max(1, values * size // total)
    for start in range(0, size, step):
        stop = min(start + step, size)
        low, high = max(0, start - overlap), min(size, stop + overlap)
        window = (axis, low, high - low)
        seen = context.narrow(*window)
        own = None if shift is None else shift.narrow(*window)
        part, scores = _scored(calibrator, case.logits[None].narrow(*window), seen, own, kind)
        inner = (axis, start - low, stop - start)
        where = (..., slice(start, stop), *[slice(None)] * (-axis - 1))
        yield Slab(where, part.narrow(*inner), scores.narrow(*inner))


@torch.no_grad()
def _scored(
    calibrator: Calibrator, logits: Tensor, context: Context, shift: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    device = next(calibrator.parameters(), logits).device
    logits = logits.to(device, dtype)
    if shift is not None:
        logits = logits + shift.to(device, dtype)
    return logits, calibrator.quick_scores(logits, context.to(device))


def image_gap(calibrator: Calibrator, logits: Tensor, values: int = STEP_VALUES) -> Tensor:
    """Return what a calibrator that sees the whole image must be given of it."""
    return _region_gaps(logits) if isinstance(calibrator, PerRegion) else _mean_gap(logits, values)


def _mean_gap(logits: Tensor, values: int) -> Tensor:
    """Return what is known of the whole image, ``(1,)``, found in parts."""
    voxels = logits.reshape(1, len(logits), -1)
    step = max(1, values // len(logits))
    parts = [runner_up_gap(part.to(compute_dtype(part.dtype))) for part in voxels.split(step, dim=2)]
    return torch.stack([part.sum(1, dtype=torch.float64) for part in parts]).sum(0) / voxels.shape[2]


def _region_gaps(logits: Tensor) -> Tensor:
    """Return the same of each region, ``(1, regions)``; the gap between off and on is the size of the logit."""
    gaps = (each.reshape(-1).to(compute_dtype(each.dtype)).abs().clamp(max=LARGEST_GAP) for each in logits)
    return torch.stack([gap.mean(dtype=torch.float64) for gap in gaps])[None]
