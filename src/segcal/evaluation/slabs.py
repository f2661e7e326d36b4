"""The scores of one case in slabs of bounded size: the one way in which a fitted calibrator meets a case.

Slabs are cut along the longest axis of space and overlap by what a voxel can see, so only the memory changes. It holds
one slab of logits and its result, on the calibrator's device and in the type of the computation. A calibrator that sees
the whole image gets the whole image.

A scene need not fit in memory. It is read in windows, boxes of whole tiles, so each tile is written once. Each is read
with a margin of what a pixel can see (`Calibrator.reach`), which is cut off again, and only rounding changes. A
calibrator that is told the mean over the image gets it from a first pass over all windows. One that sees the whole
image, or images, gets the whole scene.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.neighbourhood import LARGEST_GAP, runner_up_gap
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case, Cases, naming_case
from segcal.cases.files import FileCases
from segcal.cases.formats.scene import Scene, whole
from segcal.cases.raster_file import Where
from segcal.checks import check_forward
from segcal.errors import InputError
from segcal.numerics import compute_dtype
from segcal.types import Context

AnyCases = TypeVar("AnyCases", bound=Cases)

# Logits of one slab.
STEP_VALUES = 1 << 24
# Logits of one window.
WINDOW_VALUES = 1 << 22


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
    calibrator: Calibrator, case: Case, device: torch.device | str | None = None, values: int | None = None
) -> Tensor:
    """Return the scores ``(classes, *space)`` of a case, on a device; None is where the calibrator is."""
    scores: Tensor | None = None
    for slab in score_slabs(calibrator, case, values=values):
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
) -> Iterator[Slab]:
    """Yield a case slab by slab.

    Args:
        calibrator: on any device.
        case: with the context that the calibrator sees.
        dtype: what to compute in; None is the type of the logits, and float32 for half types.
        shift: ``(1, *space)``, added to the logits in `dtype`.
        values: the logits of one slab; :data:`STEP_VALUES` by default.
    """
    check_forward(case.logits[None], calibrator.num_classes)
    values = STEP_VALUES if values is None else values
    space, total = case.logits.shape[1:], case.logits.numel()
    kind = compute_dtype(case.logits.dtype) if dtype is None else dtype
    reach = calibrator.reach(len(space))
    context = case.context
    if calibrator.sees_image and context.mean_gap is None:
        gap, count = _gap_sum(calibrator, case, values)
        context = context._replace(mean_gap=gap / max(count, 1))
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


def _gap_sum(calibrator: Calibrator, case: Case, values: int = STEP_VALUES) -> tuple[Tensor, int]:
    """Return the sum of gaps over the voxels that were predicted, found in parts, and their number."""
    voxels, mask = case.logits.reshape(1, len(case.logits), -1), None if case.mask is None else case.mask.flatten()
    size, step, total = voxels.shape[2], max(1, values // voxels.shape[1]), torch.zeros((), dtype=torch.float64)
    for part in (slice(start, start + step) for start in range(0, size, step)):
        found = voxels[..., part].to(compute_dtype(voxels.dtype))  # between off and on of a region it is the logit
        found = found.abs().clamp(max=LARGEST_GAP) if isinstance(calibrator, PerRegion) else runner_up_gap(found)
        total = total + (found if mask is None else found[..., mask[part]]).sum(-1, dtype=torch.float64)
    return total, size if mask is None else int(mask.sum())


def is_scene(cases: FileCases) -> bool:
    """Whether cases can be read by windows."""
    return all(isinstance(member, Scene) for member in cases.members)


def scene_parts(calibrator: Calibrator, cases: FileCases, case_id: str) -> Iterator[tuple[Where, Where, Case]]:
    """Yield where each window of a scene lies, where it is in a case that has its margin too, and that case."""
    with naming_case(case_id):
        space = _space(cases, case_id)
        reach = None if cases.image_folder is not None else calibrator.reach(len(space))
        boxes = [whole(space)] if reach is None else list(windows(cases, case_id))
        gap = _scene_gap(calibrator, cases, case_id, boxes) if calibrator.sees_image and len(boxes) > 1 else None
    for where in boxes:
        edges = zip(where, reach or (0,) * len(space), space, strict=True)
        seen = tuple(slice(max(0, one.start - far), min(size, one.stop + far)) for one, far, size in edges)
        inner = tuple(slice(w.start - s.start, w.stop - s.start) for w, s in zip(where, seen, strict=True))
        yield where, inner, replace(part_of(cases, seen, len(boxes) > 1).checked(case_id), mean_gap=gap)


def windows(cases: FileCases, case_id: str) -> Iterator[Where]:
    """Yield the windows of a scene, row by row."""
    scene, space = cases.members[0], _space(cases, case_id)
    assert isinstance(scene, Scene)
    step = window_size(space, scene.tile(case_id), WINDOW_VALUES // max(cases.num_classes, 1))
    for corner in product(*(range(0, size, each) for size, each in zip(space, step, strict=True))):
        yield tuple(slice(low, min(low + each, size)) for low, each, size in zip(corner, step, space, strict=True))


def window_size(space: Sequence[int], tile: Sequence[int], voxels: int) -> tuple[int, ...]:
    """Return the sides of a box of whole tiles, at least one, with at most so many voxels, close to a cube.

    >>> window_size((1000, 3000), (256, 256), 300_000), window_size((10, 3000), (1, 3000), 7000)
    ((512, 512), (2, 3000))
    """
    size = [min(pair) for pair in zip(tile, space, strict=True)]
    while True:
        wider = [min(2 * one, most) for one, most in zip(size, space, strict=True)]
        can = [k for k, one in enumerate(size) if wider[k] > one and prod(size) // one * wider[k] <= voxels]
        if not can:
            return tuple(size)
        axis = min(can, key=size.__getitem__)
        size[axis] = wider[axis]


def part_of(cases: FileCases, where: Where, is_part: bool = True) -> FileCases:
    """Return cases of which only a window is seen, without labels."""
    chosen = copy.copy(cases)
    chosen.label_folder = chosen.kept = None
    if is_part:
        chosen.image_folder = None
        chosen.members = tuple(member.part(where) for member in cases.members if isinstance(member, Scene))
    return chosen


def _space(cases: FileCases, case_id: str) -> tuple[int, ...]:
    """Return the space of a scene, which all members must have."""
    spaces = {member.header(case_id).shape[1:]: member for member in cases.members}
    if len(spaces) > 1:
        one, other = list(spaces)[:2]
        raise InputError(
            f"{spaces[other].path(case_id)} has space {other}, but {spaces[one].path(case_id)} has {one}. Members of "
            "one ensemble must agree: export this one again or leave it out."
        )
    return next(iter(spaces))


def _scene_gap(calibrator: Calibrator, cases: FileCases, case_id: str, boxes: Sequence[Where]) -> Tensor:
    total, count = torch.zeros((), dtype=torch.float64), 0
    for box in boxes:  # one number at a time: small tensors that stay would keep freed windows from going back
        own, voxels = _gap_sum(calibrator, part_of(cases, box).checked(case_id))
        total, count = total + own, count + voxels
    return total / max(count, 1)
