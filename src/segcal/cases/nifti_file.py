"""NIfTI files, opened with nibabel after their declared size has been checked.

Arrays are in nibabel's order (x, y, z, ...), as stored. SimpleITK, and with it nnU-Net, calls the same axes (z, y, x).
"""

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from segcal.cases.bounded import DEFLATE_RATIO, check_size, reading
from segcal.errors import InputError

EXTENSIONS = (".nii.gz", ".nii")
_NUMBERS = "fiub"


def load_extra(module: str, extra: str) -> ModuleType:
    """Import a library that is installed with one of segcal's extras."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{module} is not installed, but these files need it. Install it with: pip install 'segcal[{extra}]'."
        ) from None


def open_nifti(path: Path) -> Any:
    """Return nibabel's image, whose values are not read yet."""
    nibabel = load_extra("nibabel", "nifti")
    with reading(path):
        image = nibabel.load(path)
        dtype = np.dtype(image.get_data_dtype())
        if dtype.kind not in _NUMBERS:
            raise InputError(f"{path} has dtype {dtype}, but numbers are needed. Save one number a voxel and channel.")
        needed = math.prod(int(size) for size in image.shape) * dtype.itemsize
        compressed = path.name.endswith(".gz")
        start = 0 if compressed else int(image.dataobj.offset)
        check_size(path, needed, path.stat().st_size - start, DEFLATE_RATIO if compressed else 1)
    return image


def nifti_values(image: Any, path: Path) -> np.ndarray:
    """Read the values; scaled integers come back as floats."""
    with reading(path):
        values = np.asanyarray(image.dataobj)
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def orientation(image: Any) -> str:
    """Return where the axes point, such as "RAS"; "" where the header does not say."""
    nibabel = load_extra("nibabel", "nifti")
    affine = np.asarray(image.affine, np.float64)
    if not np.isfinite(affine).all():
        return ""
    codes = nibabel.aff2axcodes(affine)
    return "" if None in codes else "".join(codes)


def spacing(image: Any) -> tuple[float, ...] | None:
    """Return the voxel size along the axes of space, or None where the header has no usable one."""
    sizes = tuple(float(size) for size in image.header.get_zooms()[:3])
    return sizes if all(np.isfinite(size) and size > 0 for size in sizes) else None
