"""``CASE_0.nii.gz``, ``CASE_1.nii.gz``, ...: one NIfTI file a class, as most viewers like it.

How names are read is a regular expression with the groups ``id`` and ``cls``; the class numbers of a case must be
0, 1, ..., C - 1.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segcal.cases import nifti_file
from segcal.cases.formats.base import Format, Header, Stored
from segcal.cases.formats.nifti import save_like
from segcal.cases.labels import find_files
from segcal.cases.nifti_file import open_nifti
from segcal.errors import InputError


class NiftiClasses(Format):
    """NIfTI files that hold one class each."""

    name = "nifti_classes"
    extensions = nifti_file.EXTENSIONS

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
        header = self.header(case_id)
        paths = self._paths(case_id)
        first = open_nifti(paths[0])
        values: np.ndarray | None = None
        for number, path in enumerate(paths):
            plane = nifti_file.nifti_values(open_nifti(path), path)
            values = np.empty(header.shape, plane.dtype) if values is None else values
            values[number] = plane
        assert values is not None
        sizes = nifti_file.spacing(first)
        return Stored(
            values,
            spacing=None if sizes is None else sizes[: values.ndim - 1],
            orientation=nifti_file.orientation(first),
        )

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
