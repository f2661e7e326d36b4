"""What nnU-Net's ``dataset.json`` and ``plans.json`` say about a folder of predictions.

Predictions have both files beside them; a fold's ``validation`` folder has them two levels up, in the model's folder.
``dataset.json`` lists the classes: heads are all labels but ``ignore``, which must be the highest. A label that is a
list of several numbers is a region: such models end in sigmoids, not in a softmax, and are refused.
``plans.json`` says in which order the axes were when the cropping box was found (`transpose_forward`), and which reader
made arrays of files.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.cases.labels import Axes
from segcal.documents import read_json
from segcal.errors import InputError

SHARED = ("dataset.json", "plans.json", "predict_from_raw_data_args.json")


@dataclass(frozen=True)
class NnunetDataset:
    """The facts that reading and writing need.

    Attributes:
        class_names: one name a head.
        ignore: the label that does not count, or None.
        file_ending: how label maps end.
        transpose_forward: from the axes of the files to those of the cropping box; None without plans.json.
        label_axes: the order of a NIfTI file's axes in the arrays.
        shared: the JSON files that travel with predictions.
    """

    class_names: tuple[str, ...]
    ignore: int | None
    file_ending: str
    transpose_forward: tuple[int, ...] | None
    label_axes: Axes
    shared: tuple[Path, ...]


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
    names, ignore = _classes(labels, path)
    plans_path = find_beside(folder, "plans.json")
    if plans_path is None and properties is not None:
        plans_path = find_beside(properties, "plans.json")
    plans = {} if plans_path is None else read_json(plans_path)
    shared = (path, plans_path, folder / SHARED[2])
    return NnunetDataset(
        class_names=names,
        ignore=ignore,
        file_ending=_ending(content.get("file_ending", ".nii.gz"), path),
        transpose_forward=_transpose(plans, plans_path),
        label_axes="zyx_ras" if str(plans.get("image_reader_writer")).endswith("WithReorient") else "zyx",
        shared=tuple(file for file in shared if file is not None and file.is_file()),
    )


def _ending(ending: object, path: Path) -> str:
    if not isinstance(ending, str) or not re.fullmatch(r"(\.\w+)+", ending):  # it becomes part of a path
        raise InputError(f"{path} has file_ending = {ending!r}, but one such as '.nii.gz' is needed. Check the file.")
    return ending


def _classes(labels: dict[str, Any], path: Path) -> tuple[tuple[str, ...], int | None]:
    regions = [name for name, value in labels.items() if isinstance(value, list) and len(value) > 1]
    if regions:
        raise InputError(
            f"{path} defines the regions {', '.join(regions)}: the model ends in independent sigmoids, but only "
            "softmax models are supported. Calibrate each region as its own two-class problem with kind='sigmoid'."
        )
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
