"""``CASE.npz``: the declared array of each file, or the only one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.bounded import check_used, npz_header, npz_keys, read_npz
from segcal.cases.formats.base import Format, Header, Stored, classes_first


class Npz(Format):
    """Zipped numpy files."""

    name = "npz"
    extensions = (".npz",)

    def header(self, case_id: str) -> Header:
        """Look at the header of the array."""
        header = npz_header(self.path(case_id), self.options.key)
        return Header(classes_first(header.shape, self.class_axis(len(header.shape))), header.dtype)

    def read(self, case_id: str) -> Stored:
        """Read the array."""
        values = read_npz(self.path(case_id), self.options.key)
        return Stored(np.moveaxis(values, self.class_axis(values.ndim), 0) if values.ndim else values)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write under the same key, with the other arrays of the file as they were."""
        path = self.path(case_id)
        keys = npz_keys(path)
        chosen = keys[0] if self.options.key is None else self.options.key
        check_used(path, sum(npz_header(path, key).nbytes for key in keys))
        arrays: dict[str, Any] = {key: read_npz(path, key) for key in keys if key != chosen}
        arrays[chosen] = np.ascontiguousarray(np.moveaxis(values, 0, self.class_axis(values.ndim)))
        with (folder / path.name).open("wb") as file:  # given a path, the library adds ".npz" to CASE.NPZ
            np.savez_compressed(file, **arrays)
        return [path.name]
