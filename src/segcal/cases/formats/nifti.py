"""``CASE.nii.gz``: one 4-D NIfTI file a case, classes last (x, y, z, class), as viewers and nibabel have it.

A five-dimensional file (x, y, z, 1, class), the standard's own place for vectors, is read as well.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases import nifti_file
from segcal.cases.formats.base import Format, Header, Stored, classes_first
from segcal.cases.nifti_file import load_extra, open_nifti
from segcal.documents import reading


class Nifti(Format):
    """NIfTI files that hold all classes."""

    name = "nifti"
    extensions = nifti_file.EXTENSIONS

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        image = open_nifti(self.path(case_id))
        shape = _drop_time(tuple(int(size) for size in image.shape))
        return Header(classes_first(shape, self.class_axis(len(shape), -1)), np.dtype(image.get_data_dtype()))

    def read(self, case_id: str) -> Stored:
        """Read values, voxel size and orientation."""
        path = self.path(case_id)
        image = open_nifti(path)
        values = nifti_file.nifti_values(image, path)
        values = values.reshape(_drop_time(values.shape))
        sizes = nifti_file.spacing(image)
        return Stored(
            np.moveaxis(values, self.class_axis(values.ndim, -1), 0) if values.ndim else values,
            spacing=None if sizes is None else sizes[: values.ndim - 1],
            orientation=nifti_file.orientation(image),
        )

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write with the header and affine of the input."""
        path = self.path(case_id)
        image = open_nifti(path)
        ordered = np.moveaxis(values, 0, self.class_axis(values.ndim, -1)).reshape(image.shape)
        save_like(image, ordered, folder / path.name)
        return [path.name]


def save_like(image: Any, values: np.ndarray, path: Path) -> None:
    """Save an array with another image's header and affine, in the array's own dtype and unscaled."""
    load_extra("nibabel", "nifti")
    with reading(path):
        header = image.header.copy()
        # NIfTI has no half precision; what is read as float16 elsewhere is kept as float32 here.
        kept = values.astype(np.float32) if values.dtype == np.float16 else values
        header.set_data_dtype(kept.dtype)
        header.set_slope_inter(1, 0)
        made = type(image)(kept, image.affine, header)
    made.to_filename(path)


def _drop_time(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:3], shape[4]) if len(shape) == 5 and shape[3] == 1 else shape
