"""NIfTI files, opened with nibabel after what they declare has been checked.

Arrays are in nibabel's order (x, y, z, ...), as stored. SimpleITK, and with it nnU-Net, calls the same axes (z, y, x).

The header says where the values begin (`vox_offset`); until there, extensions follow each other, each with its own
length. A library reads an extension of whatever length it declares, and from a compressed file that can be a thousand
times the file. So the chain of lengths is followed here: values begin within 16 MB, and no extension goes beyond.
"""

import gzip
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.safe_io import DEFLATE_RATIO, NUMBERS, check_array
from segcal.documents import reading
from segcal.errors import InputError, load_extra

EXTENSIONS = (".nii.gz", ".nii")
MAX_HEAD = 16 << 20
# Header length -> where `vox_offset` stands, and its type: NIfTI-1 and NIfTI-2.
_OFFSETS = {348: (108, "f"), 540: (168, "q")}
# Squares of voxel sizes, and of lengths made of them, must be ordinary numbers.
_SMALLEST, _LARGEST = 1e-12, 1e12


def open_nifti(path: Path, canonical: bool = False) -> Any:
    """Return nibabel's image, whose values are not read yet; `canonical` turns its axes to RAS."""
    nibabel = load_extra("nibabel", "nifti")
    with reading(path):
        check_head(path)
        image = nibabel.load(path)
        dtype = np.dtype(image.get_data_dtype())
        if dtype.kind not in NUMBERS:
            raise InputError(
                f"{path} has dtype {dtype}, but numbers are needed. Save one number per voxel and channel."
            )
        shape = tuple(int(size) for size in image.shape)
        compressed = path.name.lower().endswith(".gz")
        start = 0 if compressed else int(image.dataobj.offset)
        check_array(path, shape, dtype, path.stat().st_size - start, DEFLATE_RATIO if compressed else 1)
        return nibabel.as_closest_canonical(image) if canonical else image


def nifti_values(image: Any, path: Path) -> np.ndarray:
    """Read the values; scaled integers come back as floats, scaled in place so that there is one copy of them."""
    with reading(path):
        stored = image.dataobj
        values = np.asanyarray(stored.get_unscaled() if hasattr(stored, "get_unscaled") else stored)
        slope, shift = (stored.slope, stored.inter) if hasattr(stored, "get_unscaled") else (1.0, 0.0)
        if (slope, shift) == (1.0, 0.0):
            return values.astype(values.dtype.newbyteorder("="), copy=False)
        scaled = values.astype(np.float64)
        scaled *= slope
        scaled += shift
        return scaled


def save_like(image: Any, values: np.ndarray, path: Path) -> None:
    """Save an array with another image's header and affine, in the array's own dtype and unscaled."""
    with reading(path):
        header = image.header.copy()
        # NIfTI has no half precision; what is read as float16 elsewhere is kept as float32 here.
        kept = values.astype(np.float32) if values.dtype == np.float16 else values
        header.set_data_dtype(kept.dtype)
        header.set_slope_inter(1, 0)
        made = type(image)(kept, image.affine, header)
    made.to_filename(path)


def turned_back(values: np.ndarray, image: Any) -> np.ndarray:
    """Return values that were read in RAS orientation in the orientation of the file."""
    turns = load_extra("nibabel", "nifti").orientations
    turn = turns.ornt_transform(turns.axcodes2ornt("RAS"), turns.io_orientation(image.affine))
    return np.ascontiguousarray(turns.apply_orientation(values, turn))


def millimetres(image: Any) -> float:
    """Return how many millimetres a length of one in the header is; without a unit, one, as every tool reads it."""
    return {1: 1e3, 3: 1e-3}.get(_unit(image), 1.0)


def _unit(image: Any) -> int:
    return int(image.header["xyzt_units"]) % 8 if "xyzt_units" in image.header else 0


def spacing(image: Any, axes: int = 3) -> tuple[float, ...] | None:
    """Return the voxel size in millimetres along the first axes of space, or None where the header has none.

    It has none where it cannot be computed with, or where it is the default of a library: voxels of exactly one, of no
    unit.
    """
    sizes = usable_spacing(image.header.get_zooms()[: min(axes, 3)])
    if sizes is None or (_unit(image) == 0 and set(sizes) == {1.0}):
        return None
    return tuple(size * millimetres(image) for size in sizes)


def usable_spacing(values: object, axes: int | None = None) -> tuple[float, ...] | None:
    """Return the voxel size along each axis as a file says it, or None if it cannot be computed with.

    A file may declare anything: zero, infinity, a number of a thousand digits. `axes` is how many it must have.

    >>> usable_spacing([1, 0.5]), usable_spacing([1.0, 10**400]), usable_spacing("ab")
    ((1.0, 0.5), None, None)
    """
    if not isinstance(values, list | tuple | np.ndarray) or (axes is not None and len(values) != axes):
        return None
    if not all(isinstance(value, int | float | np.number) and _SMALLEST <= value <= _LARGEST for value in values):
        return None
    return tuple(float(value) for value in values)


def check_head(path: Path) -> None:
    """Refuse a file whose extensions are not what they should be; what is no NIfTI at all is left to the library."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        first = stream.read(4)
        order = next((sign for sign in "<>" if _number(sign + "i", first) in _OFFSETS), None)
        if order is None:
            return
        length = int(_number(order + "i", first))
        place, kind = _OFFSETS[length]
        header = first + stream.read(length - len(first))
        begin = _number(order + kind, header[place:])
        if not math.isfinite(begin) or not 0 <= begin <= MAX_HEAD:
            raise _damaged(path, f"has values that begin at byte {begin:g}")
        flags = stream.read(4)
        position = length + 4
        while flags[:1] not in (b"", b"\0") and begin - position >= 16:
            size = int(_number(order + "i", stream.read(8)))
            if not 8 <= size <= begin - position:
                raise _damaged(path, f"has an extension of {size} bytes")
            stream.read(size - 8)
            position += size


def _number(kind: str, content: bytes) -> float:
    size = struct.calcsize(kind)
    return float(struct.unpack(kind, content[:size])[0]) if len(content) >= size else 0.0


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} {what}, but header and extensions take at most {MAX_HEAD} bytes. Export it again.")
