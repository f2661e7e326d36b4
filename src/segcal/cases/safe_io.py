"""Reading arrays from files that may be wrong: what a file declares is checked before anything is allocated.

A header of a few bytes can promise an array of any size, and a zip entry can promise any length. So

- an array is allocated only if the file has enough bytes for it, as they are or unpacked (deflate reaches 1032 to 1 at
  most);
- and only if it fits in half of the machine's memory *as it is used*: as stored, and once more in the widest type that
  anything computes in. Scaled integers, half floats and labels all grow on their way. An axis of size 0 hides the sizes
  of the others, so it counts as 1;
- nothing is unpickled, and every failure of a library becomes an :class:`~segcal.errors.InputError` naming the file.
"""

import io
import math
import os
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from segcal.checks import check_memory, memory_limit
from segcal.documents import reading
from segcal.errors import InputError

# The most that deflate can make of one byte; a declared size above it is wrong.
DEFLATE_RATIO = 1032
NUMBERS = "fiub"
# Numpy itself refuses headers above 10,000 characters; nothing more is ever read to look at one.
_HEAD_BYTES = 16 << 10
_CHUNK = 16 << 20
_LARGEST_AXIS = 1 << 62
# Bytes of a number while it is computed with: float64 or int64.
_WORKING = 8


class ArrayHeader(NamedTuple):
    """Declarations in the header of a stored array, and where its values begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def used_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return what an array takes while it is used.

    >>> used_bytes((2, 0, 5), np.dtype("int8"))
    90
    """
    return math.prod(max(size, 1) for size in shape) * (dtype.itemsize + _WORKING)


def check_array(path: Path, shape: Sequence[int], dtype: np.dtype[Any], available: int, ratio: int = 1) -> None:
    """Refuse a declared array that does not fit in memory when it is used, or whose bytes cannot all be in the file.

    Of the `available` bytes in the file, compression can make `ratio` times as many.
    """
    check_used(path, used_bytes(shape, dtype))
    needed = math.prod(shape) * dtype.itemsize
    if needed > available * ratio:
        raise InputError(
            f"{path} declares {needed} bytes of values, but holds {available}"
            f"{'' if ratio == 1 else ' compressed'} bytes. It is cut off or damaged: export it again."
        )


def check_used(path: Path, needed: int) -> None:
    """Refuse what takes too much memory when it is used."""
    check_memory(path, needed, memory_limit(), "Use a larger machine or cut the case into tiles.")


def choose_key(keys: Sequence[str], key: str | None, path: Path, what: str = "arrays") -> str:
    """Return the declared one of the named arrays of a file, or the only one."""
    listed = ", ".join(keys[:10]) or "none"
    if key is None and len(keys) != 1:
        raise InputError(f"{path} has {len(keys)} {what} ({listed}), but one is needed. Choose it with key=.")
    chosen = keys[0] if key is None else key
    if chosen not in keys:
        raise InputError(f"{path} has the {what} {listed}, but {chosen!r} is needed. Pass the right key.")
    return chosen


def _parse_npy_header(head: bytes, path: Path) -> ArrayHeader:
    """Read the header of an array in numpy's format from its first bytes."""
    stream = io.BytesIO(head)
    with reading(path):
        version = npy_format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise InputError(f"{path} has npy version {version}, but 1.0 or 2.0 is needed. Save it with numpy.save.")
        read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    if dtype.kind not in NUMBERS:
        raise InputError(
            f"{path} has dtype {dtype}, but numbers are needed. Save a plain array of floats or integers; "
            "arrays of Python objects are never read."
        )
    if not all(0 <= size < _LARGEST_AXIS for size in shape):
        raise InputError(f"{path} has no valid shape, but sizes of an array are needed. Damaged: export it again.")
    return ArrayHeader(shape, dtype, fortran, stream.tell())


class NpyFile:
    """An npy file that is opened once: its header, the facts of that moment, and what is mapped of it later."""

    def __init__(self, path: Path) -> None:
        with reading(path), ExitStack() as failing:
            self._stream = failing.enter_context(path.open("rb", buffering=0))
            self.path, self.facts = path, os.fstat(self._stream.fileno())
            self.header = _parse_npy_header(self._stream.read(_HEAD_BYTES), path)
            check_array(path, self.header.shape, self.header.dtype, self.facts.st_size - self.header.offset)
            weakref.finalize(self, failing.pop_all().close)

    def is_still(self, path: Path, facts: os.stat_result) -> bool:
        """Whether a path is this file, as it was."""
        names = ("st_ino", "st_size", "st_mtime_ns")
        return self.path == path and all(getattr(self.facts, name) == getattr(facts, name) for name in names)

    def content(self) -> mmap:
        """Return all of its bytes."""
        return mmap(self._stream.fileno(), 0, access=ACCESS_READ)

    def values(self) -> np.ndarray:
        """Return its values; pages are private, so nothing that is done to the array reaches the file."""
        shape, dtype, fortran, offset = self.header
        if self.header.nbytes == 0:  # nothing cannot be mapped
            return np.zeros(shape, dtype)
        with reading(self.path):
            return np.memmap(self._stream, dtype, "c", offset, shape, order="F" if fortran else "C")


def npz_keys(path: Path) -> list[str]:
    """Return the names of the arrays in an npz file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def npz_header(path: Path, key: str | None) -> ArrayHeader:
    """Read and check the header of one array of an npz file."""
    with _opened(path, key) as (header, _, _):
        return header


def read_npz(path: Path, key: str | None) -> np.ndarray:
    """Read one array of an npz file: the declared one, or the only one."""
    with _opened(path, key) as (header, head, stream):
        values = _fill(header, head, stream, path)
        return values.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


@contextmanager
def _opened(path: Path, key: str | None) -> Iterator[tuple[ArrayHeader, bytes, IO[bytes]]]:
    """Open one array of an npz file, with its header checked and the bytes that were read for that."""
    with reading(path), zipfile.ZipFile(path) as archive:
        entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        entry = entries[choose_key(list(entries), key, path)]
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{path} is encrypted or compressed in an unusual way, but plain or deflated entries are needed. "
                "Save it with numpy.savez or numpy.savez_compressed."
            )
        with archive.open(entry) as stream:
            head = stream.read(_HEAD_BYTES)
            header = _parse_npy_header(head, path)
            if entry.file_size != header.offset + header.nbytes:
                raise InputError(
                    f"{path} lists {entry.file_size} bytes for an array that needs {header.offset + header.nbytes}, "
                    "but the two must agree. The file is damaged: export it again."
                )
            ratio = DEFLATE_RATIO if entry.compress_type == zipfile.ZIP_DEFLATED else 1
            check_array(path, header.shape, header.dtype, min(entry.compress_size, path.stat().st_size), ratio)
            yield header, head, stream


def _fill(header: ArrayHeader, head: bytes, stream: IO[bytes], path: Path) -> np.ndarray:
    """Return the values as bytes, read piece by piece into memory of exactly the declared size."""
    values = np.empty(header.nbytes, np.uint8)
    start = min(len(head) - header.offset, header.nbytes)
    values[:start] = np.frombuffer(head, np.uint8, start, header.offset)
    while start < header.nbytes:
        piece = stream.read(min(_CHUNK, header.nbytes - start))
        if not piece:
            raise InputError(
                f"{path} ends after {start} of {header.nbytes} bytes, but all are needed. Export it again."
            )
        values[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        start += len(piece)
    stream.read(1)  # reaching the end is what makes zipfile compare the checksum
    return values
