"""``CASE.npy``, one array per case, memory-mapped; ``CASE.npz``, the declared array of each file or the only one."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.base import Format, Header, Options, Stored
from segcal.cases.records import mapped_digest
from segcal.cases.safe_io import NpyFile, check_used, npz_header, npz_keys, read_npz
from segcal.documents import reading
from segcal.errors import InputError

# Files that are opened once: one is read, one worked on, one written.
UNDER_WAY = 3


class Npy(Format):
    """Plain numpy files."""

    name = "npy"
    documented = ("`CASE.npy`", "memory-mapped")
    extensions = (".npy",)

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder, options)
        self._opened: deque[NpyFile] = deque(maxlen=UNDER_WAY)

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_opened": deque(maxlen=UNDER_WAY)}

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        header = self._file(case_id).header
        return self.seen(header.shape, header.dtype)

    def read(self, case_id: str) -> Stored:
        """Map the file, of which nothing is read before its values are used."""
        return Stored(self.classes_first(self._file(case_id).values()))

    def digests(self, case_id: str) -> list[str]:
        """Return the digest of the file as it was opened."""
        with suppress(InputError):  # what cannot be opened has a digest too
            if self.remote is None:
                file = self._file(case_id)
                return [mapped_digest(file.content(), file.facts)]
        return super().digests(case_id)

    def _file(self, case_id: str) -> NpyFile:
        """Return the file of a case, which is opened if it is not, or if it is another one by now."""
        path = self.path(case_id)
        with reading(path):
            facts = path.stat()
        found = next((file for file in tuple(self._opened) if file.is_still(path, facts)), None)
        if found is None:
            found = NpyFile(path)
            self._opened.append(found)
        return found

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write in the axis order and byte order of the input."""
        header = self._file(case_id).header
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
