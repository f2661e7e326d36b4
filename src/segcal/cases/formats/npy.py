"""``CASE.npy``, one array per case, memory-mapped; ``CASE.npz``, the declared array of each file or the only one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.base import Format, Header, Stored
from segcal.cases.safe_io import check_used, map_npy, npy_header, npz_header, npz_keys, read_npz


class Npy(Format):
    """Plain numpy files."""

    name = "npy"
    documented = ("`CASE.npy`", "memory-mapped")
    extensions = (".npy",)

    # The file whose header was looked at last: who looks at it usually reads it next, and it is opened once.
    _opened: tuple[tuple[object, ...], np.ndarray] | None = None

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_opened": None}

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        values = self._mapped(case_id)
        self._opened = self._stamp(case_id), values
        return self.seen(values.shape, values.dtype)

    def read(self, case_id: str) -> Stored:
        """Map the file."""
        return Stored(self.classes_first(self._mapped(case_id)))

    def read_checked(self, case_id: str, check: Callable[[Header], None]) -> Stored:
        """Map the file, of which nothing is read before its values are used."""
        values = self._mapped(case_id)
        check(self.seen(values.shape, values.dtype))
        return Stored(self.classes_first(values))

    def _stamp(self, case_id: str) -> tuple[object, ...]:
        """Return what tells one file at a path from another that replaces it."""
        stat = self.path(case_id).stat()
        return case_id, stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _mapped(self, case_id: str) -> np.ndarray:
        opened, self._opened = self._opened, None
        path = self.path(case_id)
        return opened[1] if opened is not None and opened[0] == self._stamp(case_id) else map_npy(path)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write in the axis order and byte order of the input."""
        header = npy_header(self.path(case_id))
        ordered = self.as_stored(values).astype(header.dtype, copy=False)
        name = self.path(case_id).name
        with (folder / name).open("wb") as file:  # given a path, the library adds ".npy" to CASE.NPY
            np.save(file, np.asfortranarray(ordered) if header.fortran else np.ascontiguousarray(ordered))
        return [name]


class Npz(Format):
    """Zipped numpy files."""

    name = "npz"
    documented = ("`CASE.npz`", "the only array, or `key`")
    extensions = (".npz",)

    def header(self, case_id: str) -> Header:
        """Look at the header of the array."""
        header = npz_header(self.path(case_id), self.options.key)
        return self.seen(header.shape, header.dtype)

    def read(self, case_id: str) -> Stored:
        """Read the array."""
        return Stored(self.classes_first(read_npz(self.path(case_id), self.options.key)))

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write under the same key, with the other arrays of the file as they were."""
        path = self.path(case_id)
        keys = npz_keys(path)
        chosen = keys[0] if self.options.key is None else self.options.key
        check_used(path, sum(npz_header(path, key).nbytes for key in keys))
        arrays: dict[str, Any] = {key: read_npz(path, key) for key in keys if key != chosen}
        arrays[chosen] = np.ascontiguousarray(self.as_stored(values))
        with (folder / path.name).open("wb") as file:  # given a path, the library adds ".npz" to CASE.NPZ
            np.savez_compressed(file, **arrays)
        return [path.name]
