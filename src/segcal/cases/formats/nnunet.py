"""nnU-Net v2 predictions: ``CASE.npz`` (key ``probabilities``), ``CASE.pkl``, the label map and two JSON files.

Arrays are (classes, z, y, x), the reverse of what nibabel shows for a NIfTI file. nnU-Net predicts inside a box around
the non-zero voxels and fills the outside with probability one for the background. That padding is no prediction: the
box, found in the pkl in the transposed order of the plans, becomes the mask of the case.

The folder is one of predictions, a fold's ``validation`` folder, or a model's folder. Its ``fold_*/validation``
together hold every training case once, predicted by a network that did not see it. ``fold_all`` was validated on its
own training cases; it is left out, and refused where it is all there is.

Predictions have the JSON files beside them; a fold's ``validation`` folder has them two levels up, in the model's
folder. ``dataset.json`` lists the classes: heads are all labels but ``ignore``, which must be the highest. A label that
is a list of several numbers is a region. Then all but the background are, the model ends in one sigmoid for each, and
``regions_class_order`` has the label that each writes into the label map. ``plans.json`` says in which order the axes
were when the cropping box was found (`transpose_forward`), and which reader made arrays of files.

``CASE.pkl`` has the cropping box and the voxel size. ``bbox_used_for_cropping`` is in the axis order after
`transpose_forward`: entry k belongs to axis `transpose_forward[k]` of the stored array. ``spacing`` is in the order of
the stored array.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from segcal.atomic import write_bytes
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.decision import decision_of
from segcal.cases.formats.base import Format, FormatFacts, Header, Options, Stored, find_files
from segcal.cases.formats.restricted_pickle import MAX_AXES, load_plain_pickle
from segcal.cases.geometry import Geometry, nnunet_geometry
from segcal.cases.labels import Axes, read_label_file
from segcal.cases.nifti_file import EXTENSIONS, open_nifti, save_like, turned_back, usable_spacing
from segcal.cases.safe_io import npz_header, npz_keys, read_npz
from segcal.documents import read_json
from segcal.errors import InputError
from segcal.regions import Regions

KEY = "probabilities"
# nnU-Net gives a 2-D image a third axis, and along it so many times the size of its pixels.
MADE_UP = 999
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
    shared: tuple[Path, ...]  # the JSON files that come with predictions


class Nnunet(Format):
    """Folders that nnU-Net version 2 wrote."""

    name = "nnunet"
    documented = ("`CASE.npz`, `CASE.pkl`, label map", "version 2, see below")
    extensions = (".npz",)
    by_ending = False
    has_mask = True

    def __init__(self, folder: Path, options: Options) -> None:
        self.dataset = load_dataset(folder, options.properties)
        super().__init__(folder, options)

    @classmethod
    def claims(cls, folder: Path) -> bool:
        """Recognise a model's folder by its folds, and a folder of npz files by its dataset.json."""
        if any(folder.glob("fold_*/validation/*.npz")):
            return True
        # A dataset.json further up may belong to anything; the pkl beside the npz is nnU-Net's own.
        own = folder / "dataset.json"
        beside = find_beside(folder, own.name) if any(folder.glob("*.pkl")) else own
        known = beside is not None and beside.is_file() and any(folder.glob("*.npz"))
        return known and beside is not None and "labels" in read_json(beside)

    def find(self) -> dict[str, tuple[Path, ...]]:
        """List the cases of the folder, or of all folds of a model."""
        folders = self._fold_folders()
        found: dict[str, tuple[Path, ...]] = {}
        twice = []
        for folder in folders or [self.folder]:
            for case_id, path in find_files(folder, self.extensions).items():
                if case_id in found:
                    twice.append(case_id)
                found[case_id] = (path, path.with_suffix(".pkl"), path.with_name(path.stem + self.dataset.file_ending))
        if twice:
            raise InputError(
                f"{self.folder} has {', '.join(twice[:5])} in more than one fold, but a case is held out by one fold "
                "only. The split was edited between trainings; train again or give one fold's validation folder."
            )
        return found

    def facts(self) -> FormatFacts:
        """Return what dataset.json says."""
        data = self.dataset
        return FormatFacts(
            kind=decision_of(data.regions).probs,
            class_names=data.class_names,
            num_classes=len(data.class_names),
            ignore=data.ignore,
            label_axes=data.label_axes,
            regions=data.regions,
            origin=SINGLE_FOLDS if self._fold_folders() or _is_fold(self.folder) else "",
        )

    def header(self, case_id: str) -> Header:
        """Look at the array's header."""
        path = self.path(case_id)
        keys = npz_keys(path)
        if KEY not in keys and "softmax" in keys:
            raise InputError(
                f"{path} was written by nnU-Net version 1 (key softmax, cropped), but version 2 is needed. "
                "Declare format='npz' and key='softmax' if its arrays line up with your labels."
            )
        header = npz_header(path, KEY)
        heads = len(self.dataset.class_names)
        if len(header.shape) < 2 or header.shape[0] != heads:
            what = decision_of(self.dataset.regions).titles
            raise InputError(
                f"{path} has shape {header.shape}, but dataset.json lists {heads} {what}. "
                "Copy the dataset.json of the model that made it."
            )
        return Header(header.shape, header.dtype)

    def read(self, case_id: str) -> Stored:
        """Read probabilities, and from the properties the mask and the voxel size."""
        header = self.header(case_id)
        mask, spacing = read_properties(self._pkl(case_id), header.shape[1:], self.dataset.transpose_forward)
        return Stored(read_npz(self.path(case_id), KEY), mask=mask, spacing=spacing)

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return where the voxels lie, as the properties say it."""
        pkl = self._pkl(case_id)
        return nnunet_geometry(pkl, load_properties(pkl), self.header(case_id).shape[1:])

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write the array; copy the pkl, and the label map unless another decision is given."""
        pkl, label = self._pkl(case_id), self.files[case_id][2]
        names = [pkl.name, self.path(case_id).name]
        shutil.copyfile(pkl, folder / names[0])
        with (folder / names[1]).open("wb") as file:  # given a path, the library adds ".npz" to CASE.NPZ
            np.savez_compressed(file, probabilities=np.ascontiguousarray(values))
        if label.is_file():
            if decision is None:
                shutil.copyfile(label, folder / label.name)
            else:
                self._write_label(label, decision, folder / label.name)
            names.insert(0, label.name)
        return names

    def write_shared(self, folder: Path) -> None:
        """Copy the JSON files, so that nnU-Net's own commands accept the folder."""
        for path in self.dataset.shared:
            content = path.read_bytes()
            if not (folder / path.name).is_file() or (folder / path.name).read_bytes() != content:
                write_bytes(folder / path.name, content)

    def sources(self, case_id: str) -> list[Path]:
        """Return the files of the case and the JSON files that say how they are read."""
        found = super().sources(case_id)
        return [*found, *([self._pkl(case_id)] if found else []), *self.dataset.shared]

    def stored_label(self, case_id: str, space: tuple[int, ...]) -> np.ndarray | None:
        """Return the label map that nnU-Net wrote."""
        path = self.files[case_id][2]
        if not path.is_file() or not path.name.endswith((*EXTENSIONS, ".png")):
            return None
        return read_label_file(path, space, self.dataset.label_axes).values

    def _fold_folders(self) -> list[Path]:
        folds = sorted(path for path in self.folder.glob("fold_*/validation") if path.is_dir())
        held_out = [path for path in folds if path.parent.name != "fold_all"]
        inside = self.folder.resolve()
        own = inside.name == "validation" and inside.parent.name == "fold_all"
        if self.options.calibration and (own or (folds and not held_out)):
            raise InputError(
                f"{self.folder} belongs to fold_all, which predicted its own training cases, but calibration needs "
                "cases that the network has not seen. Use the folds 0 to 4, or predict a held-out set."
            )
        return held_out or folds

    def _pkl(self, case_id: str) -> Path:
        if self.options.properties is not None:
            return self.options.properties / self.files[case_id][1].name
        return self.files[case_id][1]

    def _write_label(self, source: Path, decision: np.ndarray, path: Path) -> None:
        values = decision.astype(np.uint8 if len(self.dataset.class_names) <= 256 else np.uint16)
        if source.name.endswith(".png"):
            Image.fromarray(values.reshape(values.shape[-2:])).save(path)
            return
        if not source.name.endswith(EXTENSIONS):
            raise InputError(
                f"{source} is a label map that must change, but only NIfTI and PNG can be written. "
                "Use a calibrator that preserves the argmax: then it is copied."
            )
        image = open_nifti(source)
        axes = values.transpose()
        if self.dataset.label_axes == "zyx_ras":
            axes = turned_back(axes, image)
        save_like(image, np.ascontiguousarray(axes).reshape(image.shape), path)


def _is_fold(folder: Path) -> bool:
    inside = folder.resolve()
    return inside.name == "validation" and inside.parent.name.startswith("fold_")


def find_beside(folder: Path, name: str) -> Path | None:
    """Return a file in the folder or in one of the two above it."""
    folder = folder.resolve()
    places = [folder, folder.parent, folder.parent.parent]
    return next((place / name for place in places if (place / name).is_file()), None)


# Of a dataset.json: numbers by name; a region has a list of them.
Labels: TypeAlias = Mapping[str, Any]


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
    if spacing is not None and space[:1] == (1,) and spacing[0] >= MADE_UP * max(spacing[1:], default=1.0):
        spacing = None  # a 2-D image; its third size is made up
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


def dataset_regions(labels: Labels, order: Any) -> Regions | None:
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


def _classes(labels: Labels, path: Path) -> tuple[tuple[str, ...], int | None]:
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


def _transpose(plans: dict[str, object], path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    axes = plans.get("transpose_forward")
    if not isinstance(axes, list) or sorted(map(str, axes)) != [str(axis) for axis in range(len(axes))]:
        raise InputError(f"{path} has no valid transpose_forward, but nnU-Net's plans have one. Copy the file again.")
    return tuple(int(axis) for axis in axes)


def load_properties(path: Path) -> dict[str, object]:
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
