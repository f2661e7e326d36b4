"""NIfTI files, opened with nibabel after their declared size has been checked.

Arrays are in nibabel's order (x, y, z, ...), as stored. SimpleITK, and with it nnU-Net, calls the same axes (z, y, x).
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from segcal.cases.bounded import DEFLATE_RATIO, check_array
from segcal.cases.nifti_head import check_head
from segcal.cases.spacing import usable_spacing
from segcal.documents import reading
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
        check_head(path)
        image = nibabel.load(path)
        dtype = np.dtype(image.get_data_dtype())
        if dtype.kind not in _NUMBERS:
            raise InputError(f"{path} has dtype {dtype}, but numbers are needed. Save one number a voxel and channel.")
        shape = tuple(int(size) for size in image.shape)
        compressed = path.name.lower().endswith(".gz")
        start = 0 if compressed else int(image.dataobj.offset)
        check_array(path, shape, dtype, path.stat().st_size - start, DEFLATE_RATIO if compressed else 1)
    return image


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
    return usable_spacing(image.header.get_zooms()[:3])
