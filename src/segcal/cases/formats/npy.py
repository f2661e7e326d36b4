"""``CASE.npy``: one array a case, memory-mapped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segcal.cases.bounded import map_npy, npy_header
from segcal.cases.formats.base import Format, Header, Stored, classes_first


class Npy(Format):
    """Plain numpy files."""

    name = "npy"
    extensions = (".npy",)

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        header = npy_header(self.path(case_id))
        return Header(classes_first(header.shape, self.class_axis(len(header.shape))), header.dtype)

    def read(self, case_id: str) -> Stored:
        """Map the file."""
        values = map_npy(self.path(case_id))
        return Stored(np.moveaxis(values, self.class_axis(values.ndim), 0) if values.ndim else values)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write in the axis order and byte order of the input."""
        header = npy_header(self.path(case_id))
        ordered = np.moveaxis(values, 0, self.class_axis(values.ndim)).astype(header.dtype, copy=False)
        name = self.path(case_id).name
        with (folder / name).open("wb") as file:  # given a path, the library adds ".npy" to CASE.NPY
            np.save(file, np.asfortranarray(ordered) if header.fortran else np.ascontiguousarray(ordered))
        return [name]
