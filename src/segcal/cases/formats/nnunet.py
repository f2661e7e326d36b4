"""nnU-Net v2 predictions: ``CASE.npz`` (key ``probabilities``), ``CASE.pkl``, the label map and two JSON files.

Arrays are (classes, z, y, x), the reverse of what nibabel shows for a NIfTI file. nnU-Net predicts inside a box around
the non-zero voxels and fills the outside with probability one for the background. That padding is no prediction: the
box, found in the pkl in the transposed order of the plans, becomes the mask of the case.

The folder is one of predictions, a fold's ``validation`` folder, or a model's folder, whose ``fold_*/validation``
together hold every training case once, predicted by a network that did not see it. ``fold_all`` was validated on its
own training cases; it is left out, and refused where it is all there is.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from segcal.atomic import write_bytes
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.formats.base import Format, FormatFacts, Header, Options, Stored, find_files
from segcal.cases.formats.nnunet_files import find_beside, load_dataset, load_properties, read_properties
from segcal.cases.geometry import Geometry, nnunet_geometry
from segcal.cases.labels import read_label_file
from segcal.cases.nifti_file import EXTENSIONS, open_nifti, save_like, turned_back
from segcal.cases.safe_io import npz_header, npz_keys, read_npz
from segcal.documents import read_json
from segcal.errors import InputError

KEY = "probabilities"


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
            kind="probs" if data.regions is None else "sigmoid",
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
            what = "classes" if self.dataset.regions is None else "regions"
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
