"""Scenes in windows: a calibrator meets parts of a case that need not fit in memory, and only rounding changes.

Windows are boxes of whole tiles, so that what is stored in one piece is written once. Each is read with a margin of
what a pixel can see (`Calibrator.reach`), which is cut off again. A calibrator that is told the mean over the image
gets it from a first pass over all windows. One that sees the whole image gets the whole image, and so does one with
images.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, naming_case
from segcal.cases.files import FileCases
from segcal.cases.formats.scene import Scene, sizes, whole
from segcal.cases.raster_file import Where
from segcal.errors import InputError
from segcal.evaluation.slabs import image_gap

# Logits of one window.
WINDOW_VALUES = 1 << 22


class SceneView(NamedTuple):
    """A part of a scene with its margin: where it lies, where in `case` it is, and what is known of the whole."""

    where: Where
    inner: Where
    case: Case
    mean_gap: Tensor | None


def is_scene(cases: FileCases) -> bool:
    """Whether cases can be read by windows."""
    return all(isinstance(member, Scene) for member in cases.members)


def scene_parts(calibrator: Calibrator, cases: FileCases, case_id: str) -> Iterator[SceneView]:
    """Yield a scene window by window."""
    with naming_case(case_id):
        space = _space(cases, case_id)
        reach = None if cases.image_folder is not None else calibrator.reach(len(space))
        boxes = [whole(space)] if reach is None else list(windows(cases, case_id))
        gap = _mean_gap(calibrator, cases, case_id, boxes) if calibrator.sees_image and len(boxes) > 1 else None
    for where in boxes:
        edges = zip(where, reach or (0,) * len(space), space, strict=True)
        seen = tuple(slice(max(0, one.start - far), min(size, one.stop + far)) for one, far, size in edges)
        inner = tuple(slice(w.start - s.start, w.stop - s.start) for w, s in zip(where, seen, strict=True))
        yield SceneView(where, inner, part_of(cases, seen, len(boxes) > 1).checked(case_id), gap)


def windows(cases: FileCases, case_id: str) -> Iterator[Where]:
    """Yield the windows of a scene, row by row."""
    scene, space = cases.members[0], _space(cases, case_id)
    assert isinstance(scene, Scene)
    step = window_size(space, scene.tile(case_id), WINDOW_VALUES // max(cases.num_classes, 1))
    for corner in product(*(range(0, size, each) for size, each in zip(space, step, strict=True))):
        yield tuple(slice(low, min(low + each, size)) for low, each, size in zip(corner, step, space, strict=True))


def window_size(space: Sequence[int], tile: Sequence[int], voxels: int) -> tuple[int, ...]:
    """Return the sides of a box of whole tiles of at most so many voxels, or of one tile; as near to a cube as can be.

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
    chosen.label_folder = None
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


def _mean_gap(calibrator: Calibrator, cases: FileCases, case_id: str, boxes: Sequence[Where]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for box in boxes:  # one number at a time: small tensors that stay would keep freed windows from going back
        total = total + image_gap(calibrator, part_of(cases, box).checked(case_id).logits) * prod(sizes(box))
    return total / sum(prod(sizes(box)) for box in boxes)
