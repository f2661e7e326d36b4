"""``CASE.zarr``: one zarr v3 array per case, or a group of which one array is declared.

The class axis is the one declared; else the axis that the file itself names ``c`` (as OME-Zarr does); else the first.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from segcal.cases.formats.base import Format, Header, Stored
from segcal.cases.formats.zarr_array import ZarrArray, open_array, plain_files
from segcal.cases.safe_io import choose_key
from segcal.documents import read_json, reading
from segcal.errors import InputError


class Zarr(Format):
    """Folders in zarr's third format."""

    name = "zarr"
    documented = (
        "`CASE.zarr`",
        "version 3; an array, or a group with `key`; an axis named `c` holds the classes; logits need all their "
        "chunks; extra `zarr`",
    )
    extensions = (".zarr",)

    def header(self, case_id: str) -> Header:
        """Look at the metadata."""
        stored, axis = self._open(self.path(case_id))
        return self.seen(stored.array.shape, np.dtype(stored.array.dtype), axis)

    def read(self, case_id: str) -> Stored:
        """Read the array."""
        stored, axis = self._open(self.path(case_id))
        return Stored(self.classes_first(stored.read(stored.whole), axis))

    def lacking(self, case_id: str) -> str:
        """Name the first chunk (or shard) that has no file."""
        stored, _ = self._open(self.path(case_id))
        return stored.lacking(stored.whole)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Copy the folder, so that attributes and neighbours stay, and overwrite the values."""
        path = self.path(case_id)
        shutil.copytree(path, folder / path.name)
        stored, axis = self._open(folder / path.name, mode="r+")
        stored.array[...] = np.moveaxis(values, 0, axis)
        return [path.name]

    def _open(self, path: Path, mode: str = "r") -> tuple[ZarrArray, int]:
        """Open the array of a store, and find the axis of its classes."""
        with reading(path):
            files = plain_files(path)
        inner = path
        if read_json(path / "zarr.json").get("node_type") != "array":
            keys = sorted(child.name for child in path.iterdir() if (child / "zarr.json").is_file())
            inner = path / choose_key(keys, self.options.key, path)
        stored = open_array(inner, mode)
        chunks = any(file.is_relative_to(inner) and file.name != "zarr.json" for file in files)
        if stored.array.size and not chunks:
            raise InputError(f"{inner} has no chunk, but values are needed. The file is cut off: export it again.")
        names = stored.metadata.get("dimension_names")
        default = names.index("c") if isinstance(names, list) and names.count("c") == 1 else 0
        return stored, self.class_axis(stored.array.ndim, default)
