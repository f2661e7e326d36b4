r"""NIfTI: one file per case with classes last (x, y, z, class), as viewers and nibabel have it; or one file per class.

A five-dimensional file (x, y, z, 1, class), the standard's own form of vectors, is read as well. Of files per class
(``CASE_0.nii.gz``, ``CASE_1.nii.gz``, ...) names are read by a regular expression with the groups ``id`` and ``cls``.
The class numbers of a case must be 0, 1, ..., C - 1.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segcal.cases.formats.base import Format, FormatFacts, Header, Stored, find_files
from segcal.cases.geometry import Geometry, nifti_geometry
from segcal.cases.nifti_file import EXTENSIONS, nifti_values, open_nifti, save_like, spacing
from segcal.cases.remote import Remote
from segcal.errors import InputError


class Nifti(Format):
    """NIfTI files that hold all classes."""

    name = "nifti"
    documented = ("`CASE.nii.gz` (or `.nii`)", "4-D, classes last; (x, y, z, 1, class) too; extra `nifti`")
    extensions = EXTENSIONS
    last_axis = True

    @classmethod
    def check_only(cls, folder: Path, remote: Remote | None) -> None:
        """Tell one file per case from one per class by the axes of the first file that can be opened."""
        failure: InputError | None = None
        for path in find_files(folder, cls.extensions).values():
            try:
                axes = len(open_nifti(path if remote is None else remote.fetched(path.name)).shape)
            except InputError as error:  # a damaged file fails its own case, later
                failure = failure or error
                continue
            if axes < 4:
                raise InputError(
                    f"{path} has {axes} axes: one class of a volume, or all classes of a 2-D image, but which "
                    "must be declared. Pass format='nifti_classes' or format='nifti'."
                )
            return
        assert failure is not None
        raise failure

    def facts(self) -> FormatFacts:
        """Return that labels, where they are NIfTI too, have the same axes."""
        return FormatFacts(label_axes="xyz")

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        image = open_nifti(self.path(case_id))
        return self.seen(_drop_time(image.shape), np.dtype(image.get_data_dtype()))

    def read(self, case_id: str) -> Stored:
        """Read values and voxel size."""
        path = self.path(case_id)
        image = open_nifti(path)
        values = nifti_values(image, path)
        values = self.classes_first(values.reshape(_drop_time(values.shape)))
        return Stored(values, spacing=spacing(image, values.ndim - 1))

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return where the voxels lie; an affine is of the first axes, and says nothing where classes are there."""
        last = len(self.header(case_id).shape) - 1
        return nifti_geometry(self.path(case_id), space=last) if self.class_axis(last + 1) == last else []

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write with the header and affine of the input."""
        path = self.path(case_id)
        image = open_nifti(path)
        save_like(image, self.as_stored(values).reshape(image.shape), folder / path.name)
        return [path.name]


class NiftiClasses(Format):
    """NIfTI files that hold one class each."""

    name = "nifti_classes"
    documented = (
        "`CASE_0.nii.gz`, `CASE_1.nii.gz`, ...",
        "one file per class; other names with `class_pattern`; must be declared",
    )
    extensions = EXTENSIONS
    by_ending = False

    def find(self) -> dict[str, tuple[Path, ...]]:
        """Group the files of the folder by case and sort them by class."""
        try:
            pattern = re.compile(self.options.class_pattern)
        except re.error as error:
            raise InputError(f"class_pattern is not a regular expression ({error}). Correct the pattern.") from None
        if not {"id", "cls"} <= set(pattern.groupindex):
            raise InputError(
                f"class_pattern {pattern.pattern!r} has the groups {', '.join(pattern.groupindex) or 'none'}, "
                r"but id and cls are needed. Write for example '(?P<id>.+)_(?P<cls>\d+)'."
            )
        found: dict[str, dict[int, Path]] = {}
        for stem, path in find_files(self.folder, self.extensions).items():
            match = pattern.fullmatch(stem)
            if match is None or not match["cls"].isdecimal():
                raise InputError(
                    f"{path} does not match {self.options.class_pattern!r}, but the class must be found in the name. "
                    "Rename the file or pass class_pattern."
                )
            found.setdefault(match["id"], {})[int(match["cls"])] = path
        self._numbers = {case_id: sorted(paths) for case_id, paths in found.items()}
        return {case_id: tuple(paths[number] for number in sorted(paths)) for case_id, paths in found.items()}

    def facts(self) -> FormatFacts:
        """Return that labels, where they are NIfTI too, have the same axes."""
        return FormatFacts(label_axes="xyz")

    def header(self, case_id: str) -> Header:
        """Look at the headers of all classes."""
        images = [open_nifti(path) for path in self._paths(case_id)]
        shapes = {tuple(int(size) for size in image.shape) for image in images}
        if len(shapes) > 1:
            raise InputError(
                f"{self.files[case_id][0]} and the other classes have the shapes {sorted(shapes)}, but one is needed. "
                "Export the case again."
            )
        return Header((len(images), *shapes.pop()), np.dtype(images[0].get_data_dtype()))

    def read(self, case_id: str) -> Stored:
        """Read one class after the other into one array."""
        shape, paths = self.header(case_id).shape, self._paths(case_id)
        image = open_nifti(paths[0])
        first = nifti_values(image, paths[0])
        values = np.empty(shape, first.dtype)
        values[0] = first
        for number, path in enumerate(paths[1:], 1):
            values[number] = nifti_values(open_nifti(path), path)
        return Stored(values, spacing=spacing(image, values.ndim - 1))

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return where the voxels of every class lie."""
        return [found for path in self._paths(case_id) for found in nifti_geometry(path)]

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write every class with the header of its input; the first class completes the case."""
        paths = self._paths(case_id)
        for path, plane in zip(paths, values, strict=True):
            save_like(open_nifti(path), plane, folder / path.name)
        return [path.name for path in reversed(paths)]

    def _paths(self, case_id: str) -> tuple[Path, ...]:
        self.path(case_id)
        numbers = self._numbers[case_id]
        if numbers != list(range(len(numbers))):
            raise InputError(
                f"{self.folder} has the classes {', '.join(map(str, numbers))}, but 0 to {max(numbers)} are needed. "
                "Add the missing files."
            )
        return self.files[case_id]


def _drop_time(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:3], shape[4]) if len(shape) == 5 and shape[3] == 1 else shape
