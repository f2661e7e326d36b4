"""The cropping box and the voxel size from nnU-Net's ``CASE.pkl``.

``bbox_used_for_cropping`` is in the axis order after `transpose_forward`: entry k belongs to axis
`transpose_forward[k]` of the stored array. ``spacing`` is in the order of the stored array.
"""

from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.restricted_pickle import load_plain_pickle
from segcal.cases.spacing import usable_spacing
from segcal.errors import InputError

REPAIR = "Pass properties= with the folder of a member's pkl files."


def read_properties(
    path: Path, space: tuple[int, ...], transpose_forward: tuple[int, ...] | None
) -> tuple[np.ndarray | None, tuple[float, ...] | None]:
    """Return the mask of the cropping box (None if it is everything) and the voxel size (None if unusable)."""
    properties = _load(path)
    shape = _integers(properties.get("shape_before_cropping"))
    pairs = properties.get("bbox_used_for_cropping")
    box = [_integers(pair) for pair in pairs] if isinstance(pairs, list | tuple | np.ndarray) else None
    if shape is None or box is None or len(box) != len(shape) or not _inside(box, shape):
        raise InputError(f"{path} has no valid bbox_used_for_cropping and shape_before_cropping. {REPAIR}")
    spacing = usable_spacing(properties.get("spacing"), len(space))
    if all(pair == [0, size] for pair, size in zip(box, shape, strict=True)) and sorted(shape) == sorted(space):
        return None, spacing
    if transpose_forward is None:
        raise InputError(
            f"{path} has a cropping box, but plans.json, which says in which axis order, is not beside it "
            "(nnUNetv2_ensemble does not copy it). Copy it from a member's folder."
        )
    if len(transpose_forward) != len(shape) or [space[axis] for axis in transpose_forward] != shape:
        raise InputError(
            f"{path} says the shape is {shape} in the order {list(transpose_forward)}, but its array has {space}. "
            "Take pkl and plans.json from the run that made the npz."
        )
    mask = np.zeros(space, bool)
    window: list[Any] = [slice(None)] * len(space)
    for axis, pair in zip(transpose_forward, box, strict=True):
        assert pair is not None
        window[axis] = slice(pair[0], pair[1])
    mask[tuple(window)] = True
    return mask, spacing


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path} is missing, but the box in which nnU-Net predicted is in it. {REPAIR}")
    properties = load_plain_pickle(path)
    if isinstance(properties, np.ndarray):
        raise InputError(
            f"{path} holds an array instead of the case's properties: nnUNetv2_ensemble before 2.8.0 wrote it, but the "
            f"cropping box is needed. {REPAIR}"
        )
    if not isinstance(properties, dict):
        raise InputError(f"{path} holds a {type(properties).__name__}, but nnU-Net's properties are a dict. {REPAIR}")
    return properties


def _integers(values: object) -> list[int] | None:
    if not isinstance(values, list | tuple | np.ndarray):
        return None
    if not all(isinstance(value, int | np.integer) for value in values):
        return None
    return [int(value) for value in values]


def _inside(box: list[list[int] | None], shape: list[int]) -> bool:
    return all(
        pair is not None and len(pair) == 2 and 0 <= pair[0] < pair[1] <= size
        for pair, size in zip(box, shape, strict=True)
    )
