"""Files that nnU-Net writes beside predictions: ``dataset.json``, ``plans.json``, and per case ``CASE.pkl``.

Predictions have the JSON files beside them; a fold's ``validation`` folder has them two levels up, in the model's
folder. ``dataset.json`` lists the classes: heads are all labels but ``ignore``, which must be the highest. A label that
is a list of several numbers is a region: then all but the background are, the model ends in one sigmoid for each, and
``regions_class_order`` has the label that each writes into the label map. ``plans.json`` says in
which order the axes were when the cropping box was found (`transpose_forward`), and which reader made arrays of files.

``CASE.pkl`` has the cropping box and the voxel size. ``bbox_used_for_cropping`` is in the axis order after
`transpose_forward`: entry k belongs to axis `transpose_forward[k]` of the stored array. ``spacing`` is in the order of
the stored array.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.restricted_pickle import MAX_AXES, load_plain_pickle
from segcal.cases.labels import Axes
from segcal.cases.nifti_file import usable_spacing
from segcal.documents import read_json
from segcal.errors import InputError
from segcal.regions import Regions

# nnU-Net gives a picture a third axis, and along it so many times the size of its pixels.
PICTURE = 999
REPAIR = "Pass properties= with the folder of a member's pkl files."


@dataclass(frozen=True)
class NnunetDataset:
    """The facts that reading and writing need."""

    class_names: tuple[str, ...]  # one per head
    ignore: int | None
    regions: Regions | None  # of a model that ends in sigmoids
    file_ending: str  # of label maps
    transpose_forward: tuple[int, ...] | None  # from the axes of files to those of the box; None without plans.json
    label_axes: Axes
    shared: tuple[Path, ...]  # the JSON files that travel with predictions


def find_beside(folder: Path, name: str) -> Path | None:
    """Return a file in the folder or in one of the two above it."""
    folder = folder.resolve()
    places = [folder, folder.parent, folder.parent.parent]
    return next((place / name for place in places if (place / name).is_file()), None)


def load_dataset(folder: Path, properties: Path | None) -> NnunetDataset:
    """Read the JSON files that belong to a folder of predictions."""
    path = find_beside(folder, "dataset.json")
    if path is None:
        raise InputError(
            f"{folder} has no dataset.json, nor do the two folders above it, but it lists the classes. "
            "Copy it from the nnU-Net model's folder."
        )
    content = read_json(path)
    labels = content.get("labels")
    if not isinstance(labels, dict) or not labels:
        raise InputError(
            f"{path} has no labels, but nnU-Net's dataset.json lists them. Copy it from the model's folder."
        )
    regions = dataset_regions(labels, content.get("regions_class_order"))
    names, ignore = _classes(labels, path) if regions is None else (regions.names, labels.get("ignore"))
    ending = content.get("file_ending", ".nii.gz")
    if not isinstance(ending, str) or not re.fullmatch(r"(\.\w+)+", ending):  # it becomes part of a path
        raise InputError(f"{path} has file_ending = {ending!r}, but one such as '.nii.gz' is needed. Check the file.")
    plans_path = find_beside(folder, "plans.json")
    if plans_path is None and properties is not None:
        plans_path = find_beside(properties, "plans.json")
    plans = {} if plans_path is None else read_json(plans_path)
    shared = (path, plans_path, folder / "predict_from_raw_data_args.json")
    return NnunetDataset(
        class_names=names,
        ignore=ignore,
        regions=regions,
        file_ending=ending,
        transpose_forward=_transpose(plans, plans_path),
        label_axes="zyx_ras" if str(plans.get("image_reader_writer")).endswith("WithReorient") else "zyx",
        shared=tuple(file for file in shared if file is not None and file.is_file()),
    )


def read_properties(
    path: Path, space: tuple[int, ...], transpose_forward: tuple[int, ...] | None
) -> tuple[np.ndarray | None, tuple[float, ...] | None]:
    """Return the mask of the cropping box (None if it is everything) and the voxel size (None if unusable)."""
    properties = load_properties(path)
    shape = _integers(properties.get("shape_before_cropping"))
    pairs = properties.get("bbox_used_for_cropping")
    box: list[list[int]] = []
    if shape and isinstance(pairs, list | tuple | np.ndarray) and len(pairs) == len(shape):
        box = [_integers(pair) or [] for pair in pairs]  # no more of them: one list may stand there many times
    if not shape or not box or not all(map(_inside, box, shape)):
        raise InputError(f"{path} has no valid bbox_used_for_cropping and shape_before_cropping. {REPAIR}")
    spacing = usable_spacing(properties.get("spacing"), len(space))
    if spacing is not None and space[:1] == (1,) and spacing[0] >= PICTURE * max(spacing[1:], default=1.0):
        spacing = None  # a picture; its third size is made up
    if box == [[0, size] for size in shape] and sorted(shape) == sorted(space):
        return None, spacing
    if transpose_forward is None:
        raise InputError(
            f"{path} has a cropping box, but plans.json, which says in which axis order, is not beside it "
            "(nnUNetv2_ensemble does not copy it). Pass properties= with a member's folder, or copy it from there."
        )
    if len(transpose_forward) != len(shape) or [space[axis] for axis in transpose_forward] != shape:
        raise InputError(
            f"{path} says the shape is {shape} in the order {list(transpose_forward)}, but its array has {space}. "
            "Take pkl and plans.json from the run that made the npz."
        )
    mask = np.zeros(space, bool)
    window = [slice(None)] * len(space)
    for axis, (start, stop) in zip(transpose_forward, box, strict=True):
        window[axis] = slice(start, stop)
    mask[tuple(window)] = True
    return mask, spacing


def dataset_regions(labels: dict[str, Any], order: Any) -> Regions | None:
    """Return the regions that the labels of a dataset.json define, if they do."""
    if not any(isinstance(value, list) and len(value) > 1 for value in labels.values()):
        return None
    if order is None:
        raise InputError(
            "dataset.json defines regions, but no regions_class_order, which says how label maps are made of them. "
            "Copy the dataset.json of the model."
        )
    own = {name: value for name, value in labels.items() if name != "ignore" and value not in (0, [0])}
    return Regions.declared(own, order, labels.get("ignore"))


def _classes(labels: dict[str, Any], path: Path) -> tuple[tuple[str, ...], int | None]:
    plain = {name: value[0] if isinstance(value, list) and value else value for name, value in labels.items()}
    if not all(type(value) is int for value in plain.values()):
        raise InputError(
            f"{path} has labels that are not whole numbers, but nnU-Net version 2 maps names to numbers. "
            "Convert a version 1 dataset with nnUNetv2_convert_old_nnUNet_dataset."
        )
    ignore = plain.pop("ignore", None)
    order = sorted(plain, key=lambda name: plain[name])
    if [plain[name] for name in order] != list(range(len(order))) or ignore not in (None, len(order)):
        raise InputError(
            f"{path} has the labels {sorted(plain.values())} and ignore = {ignore}, but 0, 1, 2, ... and an ignore "
            "label above them are needed. Check the file."
        )
    return tuple(order), ignore


def _transpose(plans: dict[str, Any], path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    axes = plans.get("transpose_forward")
    if not isinstance(axes, list) or sorted(map(str, axes)) != [str(axis) for axis in range(len(axes))]:
        raise InputError(f"{path} has no valid transpose_forward, but nnU-Net's plans have one. Copy the file again.")
    return tuple(int(axis) for axis in axes)


def load_properties(path: Path) -> dict[str, Any]:
    """Read nnU-Net's properties of a case."""
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
    if not isinstance(values, list | tuple | np.ndarray) or len(values) > MAX_AXES:
        return None
    return [int(value) for value in values] if all(isinstance(value, int | np.integer) for value in values) else None


def _inside(pair: list[int], size: int) -> bool:
    return len(pair) == 2 and 0 <= pair[0] < pair[1] <= size
