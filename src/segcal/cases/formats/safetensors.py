"""``CASE.safetensors``: the declared tensor of each file, or the only one.

numpy has no bfloat16, and eight bits could not keep near ties: such scores are read, and written, as float32.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from segcal.cases.formats.base import Format, Header, Stored
from segcal.cases.safe_io import check_array, choose_key
from segcal.documents import reading
from segcal.errors import InputError


class Safetensors(Format):
    """Files of named tensors."""

    name = "safetensors"
    documented = ("`CASE.safetensors`", "the only tensor, or `key`; bfloat16 is read and written as float32")
    extensions = (".safetensors",)

    def header(self, case_id: str) -> Header:
        """Look at the tensor's entry in the header."""
        path = self.path(case_id)
        with reading(path), safe_open(path, framework="pt") as file:
            return self.seen(*look_at(file, self._key(file, path), path))

    def read(self, case_id: str) -> Stored:
        """Read the tensor."""
        path = self.path(case_id)
        with reading(path), safe_open(path, framework="pt") as file:
            chosen = self._key(file, path)
            look_at(file, chosen, path)
            values: Tensor = file.get_tensor(chosen)
        values = values.float() if values.dtype == torch.bfloat16 else values
        return Stored(values.movedim(self.class_axis(values.ndim), 0) if values.ndim else values)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write under the same name, with the other tensors and the metadata as they were."""
        path = self.path(case_id)
        with reading(path), safe_open(path, framework="pt") as file:
            chosen = self._key(file, path)
            tensors = {key: file.get_tensor(key) for key in file.keys() if key != chosen}  # noqa: SIM118
            metadata = file.metadata()
        tensors[chosen] = torch.from_numpy(np.ascontiguousarray(self.as_stored(values)))
        write_tensors(tensors, folder / path.name, metadata)
        return [path.name]

    def _key(self, file: Any, path: Path) -> str:
        return choose_key(list(file.keys()), self.options.key, path, "tensors")


def look_at(file: Any, key: str, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of a tensor that can be used; any other is refused before it is read."""
    entry = file.get_slice(key)
    shape = tuple(int(size) for size in entry.get_shape())
    dtype = numpy_dtype(entry.get_dtype(), path)
    check_array(path, shape, dtype, path.stat().st_size, 2)  # bfloat16 becomes float32
    return shape, dtype


def numpy_dtype(name: str, path: Path) -> np.dtype[np.generic]:
    """Return the numpy type for a name of the format; bfloat16, which numpy lacks, is read as float32.

    >>> numpy_dtype("F16", Path("a")), numpy_dtype("BF16", Path("a"))
    (dtype('float16'), dtype('float32'))
    """
    letters = {"F": "float", "I": "int", "U": "uint"}
    if name in ("BF16", "BOOL"):
        return np.dtype("float32" if name == "BF16" else "bool")
    try:
        return np.dtype(letters[name[0]] + name[1:])
    except (KeyError, TypeError, IndexError):
        raise InputError(f"{path} has dtype {name}, but plain numbers are needed. Save float16 or float32.") from None


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    """Write a file that others may read as the user's settings say: the library lets nobody else read it."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # a full disk, mostly
        raise OSError(f"{path.name} could not be written ({error})") from None
    pattern = path.with_name(".mode")  # the folder is nobody else's, and a longer name may be too long
    pattern.touch()
    path.chmod(pattern.stat().st_mode)
    pattern.unlink()
