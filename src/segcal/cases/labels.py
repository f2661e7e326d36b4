"""Label maps and images beside the scores, one file at a time.

Labels: npy, npz, PNG (8 or 16 bit, palette index), NIfTI and GeoTIFF, whose nodata do not count. Images are
``(channels, *space)`` with values as stored: one file per case (npy, NIfTI, PNG, JPEG), or one per channel as nnU-Net
has them (``CASE_0000.nii.gz``, ``CASE_0001...``).

NIfTI stores (x, y, z); arrays that were made with SimpleITK or nnU-Net are (z, y, x). Where the scores are not NIfTI
themselves, `axes` says which of the two they follow. Nothing is transposed on a guess: if the shapes do not decide, the
reader asks.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from segcal.cases import nifti_file, raster_file
from segcal.cases.safe_io import DEFLATE_RATIO, NpyFile, check_array, check_used, read_npz, used_bytes
from segcal.documents import reading
from segcal.errors import InputError

# The order of NIfTI axes in the scores' arrays: as stored, reversed, or reversed after reorientation to RAS (nnU-Net's
# NibabelIOWithReorient).
Axes = Literal["xyz", "zyx", "zyx_ras"]
# When the axes of scores are reversed.
SIMPLE = "the scores were made with SimpleITK or nnU-Net, else label_axes='xyz'"
OWN = "the label map and the scores are of one case, with axes reversed"


@dataclass(frozen=True)
class LabelMap:
    """One label map as stored, its voxel size, and where it has labels, if it says so."""

    values: np.ndarray
    path: Path
    spacing: tuple[float, ...] | None = None
    valid: np.ndarray | None = None


def read_label_file(path: Path, space: tuple[int, ...], axes: Axes | None = None, key: str | None = None) -> LabelMap:
    """Read one label map and bring it to the axes of the scores."""
    name = path.name.lower()
    if name.endswith(nifti_file.EXTENSIONS):
        return _read_nifti(path, space, axes)
    if name.endswith(raster_file.EXTENSIONS):
        return _read_raster(path)
    if name.endswith(".npy"):
        values = NpyFile(path).values()
    elif name.endswith(".npz"):
        values = read_npz(path, key)
    else:
        values = _read_png(path)
        if len(space) == 3 and space[0] == 1:  # nnU-Net keeps 2-D images as volumes of one slice
            values = values[None]
    return LabelMap(_whole(values, path), path)


def _read_nifti(path: Path, space: tuple[int, ...], axes: Axes | None) -> LabelMap:
    image = nifti_file.open_nifti(path, canonical=axes == "zyx_ras")
    shape = tuple(int(size) for size in image.shape)
    while len(shape) > max(len(space), 1) and shape[-1] == 1:  # trailing axes of length one carry nothing
        shape = shape[:-1]
    if axes is None and shape[::-1] == space and len(space) > 1:  # only a declaration decides
        both = shape == space
        raise InputError(
            f"{path} has shape {shape} and its scores have {space}: {'both axis orders fit' if both else 'reversed'}, "
            f"but which one is right must be declared. Pass label_axes='zyx' if {SIMPLE if both else OWN}. "
            "It holds for labels and images."
        )
    values = _whole(nifti_file.nifti_values(image, path), path).reshape(shape)
    sizes = nifti_file.spacing(image, len(shape))
    if axes in ("zyx", "zyx_ras"):
        values, sizes = values.transpose(), None if sizes is None else sizes[::-1]
        if len(space) == values.ndim + 1 and space[0] == 1:
            values = values[None]
    return LabelMap(values, path, sizes)


def _read_raster(path: Path) -> LabelMap:
    with raster_file.open_raster(path) as file:
        check_used(path, used_bytes((file.count, *file.shape), np.dtype(file.dtypes[0])))
        if file.count != 1:
            raise InputError(f"{path} has {file.count} bands, but one of class indices is needed. Keep that band.")
        values, valid = raster_file.raster_values(file)
        values = values[0] if valid is None else np.where(valid, values[0], 0)
        return LabelMap(_whole(values, path), path, raster_file.raster_spacing(file), valid)


@contextmanager
def _image(path: Path, formats: tuple[str, ...], channels: int) -> Iterator[Image.Image]:
    """Open an image that fits in memory; one bit may become `channels` numbers of four bytes."""
    with reading(path), warnings.catch_warnings():
        # Its own limit is a warning at 89 million pixels; ours is the machine's memory.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=formats) as image:
            size = (channels, image.height, image.width)
            check_array(path, size, np.dtype(np.int32), path.stat().st_size, 32 * channels * DEFLATE_RATIO)
            yield image


def _read_png(path: Path) -> np.ndarray:
    with _image(path, ("PNG",), 1) as image:
        if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
            raise InputError(
                f"{path} is a colour image ({image.mode}), but one class index a pixel is needed. "
                "Save labels as 8 or 16 bit greyscale or with a palette."
            )
        with path.open("rb") as stream:
            depth = (stream.read(25)[24:] or b"\0")[0]
        values = np.array(image)
        if image.mode == "L" and depth in (2, 4):  # the library stretches few-bit grey to 0..255
            values //= 255 // (2**depth - 1)
    return values


def _whole(values: np.ndarray, path: Path) -> np.ndarray:
    """Return integers; NIfTI tools often store whole numbers as floats, which loses nothing."""
    if values.dtype.kind != "f":
        return values.astype(np.uint8) if values.dtype == bool else values
    if not np.isfinite(values).all() or (values != np.round(values)).any() or np.abs(values).max(initial=0) > 2**31:
        raise InputError(
            f"{path} has values that are not whole numbers, but class indices are needed. These may be scores, or "
            "labels that were resampled with interpolation."
        )
    return values.astype(np.int64)


def read_channels(path: Path, space: tuple[int, ...], axes: Axes | None) -> np.ndarray:
    """Read one image, or one channel of it, as ``(channels, *space)``."""
    name = path.name.lower()
    if name.endswith(nifti_file.EXTENSIONS):
        image = nifti_file.open_nifti(path, canonical=axes == "zyx_ras")
        values = nifti_file.nifti_values(image, path).astype(np.float32)
        values = values.transpose() if axes in ("zyx", "zyx_ras") else values
    elif name.endswith(".npy"):
        values = np.asarray(NpyFile(path).values(), np.float32)
    elif name.endswith(raster_file.EXTENSIONS):
        with raster_file.open_raster(path) as file:
            check_used(path, used_bytes((file.count, *file.shape), np.dtype(np.float32)))
            values, valid = raster_file.raster_values(file)
            values = np.asarray(values if valid is None else np.where(valid, values, 0), np.float32)
    else:
        with _image(path, ("PNG", "JPEG"), 3) as image:
            grey = image.mode in ("1", "L", "I", "I;16", "I;16B", "F")
            values = np.array(image if grey else image.convert("RGB"), np.float32)
        values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    # A 2-D image of one slice, as nnU-Net keeps it, and an image without a channel axis.
    if values.ndim == len(space) and values.shape[1:] != space[1:] and space[0] == 1:
        values = values[:, None]
    return values[None] if values.ndim == len(space) else values
