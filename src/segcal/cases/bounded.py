"""Reading files that nobody vouches for: what a file declares is checked before anything is allocated.

A header of a few bytes can promise an array of any size, and a zip entry can promise any length. So

- an array is allocated only if the bytes it needs are there: in the file itself, or within what the compression could
  have made of the bytes that are (deflate reaches 1032 to 1 at most);
- and only if it fits in half of the machine's memory;
- nothing is unpickled, and every failure of a library becomes an :class:`~segcal.errors.InputError` naming the file.
"""

import io
import json
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from segcal.errors import InputError

# The most that deflate can make of one byte; a declared size above it is a lie.
DEFLATE_RATIO = 1032
MAX_JSON_BYTES = 64 << 20
# Numpy itself refuses headers above 10,000 characters; nothing more is ever read to look at one.
_HEAD_BYTES = 16 << 10
_CHUNK = 16 << 20
_NUMBERS = "fiub"


class ArrayHeader(NamedTuple):
    """What the header of a stored array declares, and where its values begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one sentence with the file's name."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} is missing, but it is needed. Add the file or leave out its case.") from None
    except Exception as error:  # damaged files make zip, gzip, PNG and NIfTI readers raise almost anything
        reason = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {reason}), but a complete file is needed. Export it again."
        ) from None


def memory_limit() -> int:
    """Return the most bytes that one array may need: half of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 16 << 30


def check_size(path: Path, needed: int, available: int, ratio: int = 1) -> None:
    """Refuse an array whose bytes cannot all be in the file, or do not fit in memory."""
    if needed > available * ratio:
        raise InputError(
            f"{path} declares {needed} bytes of values, but holds {available}"
            f"{'' if ratio == 1 else ' compressed'} bytes. It is cut off or damaged: export it again."
        )
    if needed > memory_limit():
        raise InputError(
            f"{path} declares {needed / 2**30:.1f} GiB of values, but at most {memory_limit() / 2**30:.1f} GiB (half "
            "of this machine's memory) are read at once. Use a larger machine or store the case in parts."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size."""
    with reading(path):
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise InputError(
                f"{path} has {size} bytes, but a JSON file of at most {MAX_JSON_BYTES} is needed. Check it."
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, but a JSON object is needed. Check the file.")
    return content


def parse_npy_header(head: bytes, path: Path) -> ArrayHeader:
    """Read the header of an array in numpy's format from its first bytes."""
    stream = io.BytesIO(head)
    with reading(path):
        version = npy_format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise InputError(f"{path} has npy version {version}, but 1.0 or 2.0 is needed. Save it with numpy.save.")
        read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    if dtype.kind not in _NUMBERS:
        raise InputError(
            f"{path} has dtype {dtype}, but numbers are needed. Save a plain array of floats or integers; "
            "arrays of Python objects are never read."
        )
    if any(size < 0 for size in shape):
        raise InputError(
            f"{path} has shape {shape}, but sizes cannot be negative. The file is damaged: export it again."
        )
    return ArrayHeader(shape, dtype, fortran, stream.tell())


def npy_header(path: Path) -> ArrayHeader:
    """Read and check the header of an npy file."""
    with reading(path), path.open("rb") as stream:
        header = parse_npy_header(stream.read(_HEAD_BYTES), path)
        check_size(path, header.nbytes, path.stat().st_size - header.offset)
    return header


def map_npy(path: Path) -> np.ndarray:
    """Map an npy file; pages are private, so nothing that is done to the array reaches the file."""
    header = npy_header(path)
    with reading(path):
        if header.nbytes == 0:  # an empty file cannot be mapped
            return np.zeros(header.shape, header.dtype)
        return np.memmap(path, header.dtype, "c", header.offset, header.shape, order="F" if header.fortran else "C")


def npz_header(path: Path, key: str | None) -> ArrayHeader:
    """Read and check the header of one array of an npz file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        entry = _entry(archive, path, key)
        with archive.open(entry) as stream:
            header = parse_npy_header(stream.read(_HEAD_BYTES), path)
        _check_entry_size(path, entry, header)
    return header


def read_npz(path: Path, key: str | None) -> np.ndarray:
    """Read one array of an npz file: the declared one, or the only one."""
    with reading(path), zipfile.ZipFile(path) as archive:
        entry = _entry(archive, path, key)
        with archive.open(entry) as stream:
            head = stream.read(_HEAD_BYTES)
            header = parse_npy_header(head, path)
            _check_entry_size(path, entry, header)
            values = _fill(header, head, stream, path)
        return values.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def npz_keys(path: Path) -> list[str]:
    """Return the names of the arrays in an npz file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _entry(archive: zipfile.ZipFile, path: Path, key: str | None) -> zipfile.ZipInfo:
    entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    listed = ", ".join(list(entries)[:10]) or "none"
    if key is None and len(entries) != 1:
        raise InputError(f"{path} has {len(entries)} arrays ({listed}), but one is needed. Choose it with key=.")
    chosen = next(iter(entries)) if key is None else key
    if chosen not in entries:
        raise InputError(f"{path} has the arrays {listed}, but {chosen!r} is needed. Pass the right key.")
    info = entries[chosen]
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path} is encrypted or compressed in an unusual way, but plain or deflated entries are needed. "
            "Save it with numpy.savez or numpy.savez_compressed."
        )
    return info


def _check_entry_size(path: Path, entry: zipfile.ZipInfo, header: ArrayHeader) -> None:
    if entry.file_size != header.offset + header.nbytes:
        raise InputError(
            f"{path} lists {entry.file_size} bytes for an array that needs {header.offset + header.nbytes}, but the "
            "two must agree. The file is damaged: export it again."
        )
    ratio = DEFLATE_RATIO if entry.compress_type == zipfile.ZIP_DEFLATED else 1
    check_size(path, header.nbytes, min(entry.compress_size, path.stat().st_size), ratio)


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
