"""Label maps from files: npy, npz, PNG (8 or 16 bit, palette index) and NIfTI, found by the stem of their name.

NIfTI stores (x, y, z); arrays that were made with SimpleITK or nnU-Net are (z, y, x). Where the scores are not NIfTI
themselves, `axes` says which of the two they follow, and nothing is transposed on a guess: if the shapes do not decide
the question, the reader asks.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from segcal.cases import nifti_file
from segcal.cases.bounded import DEFLATE_RATIO, check_array, map_npy, read_npz
from segcal.documents import reading
from segcal.errors import InputError
from segcal.names import clean

Axes = Literal["xyz", "zyx", "zyx_ras"]
EXTENSIONS = (*nifti_file.EXTENSIONS, ".npy", ".npz", ".png")


@dataclass(frozen=True)
class LabelMap:
    """One label map as stored, and what its file says about geometry."""

    values: np.ndarray
    path: Path
    spacing: tuple[float, ...] | None = None
    orientation: str = ""


class LabelFolder:
    """The label maps of one folder, read one at a time.

    Args:
        folder: where they are.
        axes: the order of NIfTI label maps in the scores' arrays: "xyz" as stored, "zyx" reversed, "zyx_ras" reversed
            after reorientation to RAS (nnU-Net's NibabelIOWithReorient); None if not declared.
        key: the array of an npz file.
    """

    def __init__(self, folder: Path, axes: Axes | None = None, key: str | None = None) -> None:
        if not folder.is_dir():
            raise InputError(
                f"labels {folder} is not a folder, but one with a label map a case is needed. Check the path."
            )
        self.folder = folder
        self.axes = axes
        self.key = key
        self.files = find_files(folder, EXTENSIONS)
        if not self.files:
            raise InputError(
                f"labels {folder} has no label maps, but files ending in {', '.join(EXTENSIONS)} are needed. "
                "Lossy formats such as JPEG cannot hold labels."
            )

    def read(self, case_id: str, space: Sequence[int]) -> LabelMap:
        """Read the label map of a case whose scores have this space."""
        if case_id not in self.files:
            raise InputError(
                f"{self.folder} has no label map for it, but one is needed. Add {case_id}.* or leave it out."
            )
        return read_label_file(self.files[case_id], tuple(space), self.axes, self.key)


def find_files(folder: Path, extensions: Sequence[str]) -> dict[str, Path]:
    """Return case id -> file for the files of a folder, by stem; two files of one stem are an error.

    Ids go everywhere: to terminals, into results, into names of new files. They are clean from here on, and only the
    file itself keeps the name that it has.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        extension = next((end for end in extensions if path.name.lower().endswith(end)), None)
        if extension is None or path.name.startswith("."):
            continue
        case_id = clean(path.name[: -len(extension)])
        if case_id in found:
            raise InputError(
                f"{folder} has both {found[case_id].name} and {path.name}, but a case needs one file. Move one away."
            )
        found[case_id] = path
    return found


def read_label_file(path: Path, space: tuple[int, ...], axes: Axes | None = None, key: str | None = None) -> LabelMap:
    """Read one label map and bring it to the axes of the scores."""
    name = path.name.lower()
    if name.endswith(nifti_file.EXTENSIONS):
        return _read_nifti(path, space, axes)
    if name.endswith(".npy"):
        values = map_npy(path)
    elif name.endswith(".npz"):
        values = read_npz(path, key)
    else:
        values = _read_png(path)
        if len(space) == 3 and space[0] == 1:  # nnU-Net keeps pictures as volumes of one slice
            values = values[None]
    return LabelMap(_whole(values, path), path)


def _read_nifti(path: Path, space: tuple[int, ...], axes: Axes | None) -> LabelMap:
    image = nifti_file.open_nifti(path)
    if axes == "zyx_ras":
        with reading(path):
            image = nifti_file.load_extra("nibabel", "nifti").as_closest_canonical(image)
    shape = tuple(int(size) for size in image.shape)
    while len(shape) > max(len(space), 1) and shape[-1] == 1:  # trailing axes of length one carry nothing
        shape = shape[:-1]
    reverse = _reversed(path, shape, space, axes)
    values = _whole(nifti_file.nifti_values(image, path), path).reshape(shape)
    sizes = nifti_file.spacing(image)
    sizes = None if sizes is None else sizes[: len(shape)]
    if reverse:
        values, sizes = values.transpose(), None if sizes is None else sizes[::-1]
        if len(space) == values.ndim + 1 and space[0] == 1:
            values = values[None]
    return LabelMap(values, path, sizes, nifti_file.orientation(image))


def _reversed(path: Path, shape: tuple[int, ...], space: tuple[int, ...], axes: Axes | None) -> bool:
    """Decide whether the axes are turned round; only a declaration, or a shape that fits one way, decides."""
    if axes is not None:
        return axes != "xyz"
    as_stored, turned = shape == space, shape[::-1] == space
    if turned and len(space) > 1:
        either = "both axis orders fit" if as_stored else "reversed they fit"
        raise InputError(
            f"{path} has shape {shape} and its scores have {space}: {either}, but which one is right must be declared. "
            "Pass label_axes='zyx' if the scores were made with SimpleITK or nnU-Net, else label_axes='xyz'."
        )
    return False


def _read_png(path: Path) -> np.ndarray:
    with reading(path), warnings.catch_warnings():
        # Its own limit is a warning at 89 million pixels; ours is the machine's memory.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with path.open("rb") as stream:
            depth = (stream.read(25)[24:] or b"\0")[0]
        with Image.open(path, formats=("PNG",)) as picture:
            if picture.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
                raise InputError(
                    f"{path} is a colour picture ({picture.mode}), but one class index a pixel is needed. "
                    "Save labels as 8 or 16 bit greyscale or with a palette."
                )
            size = (picture.height, picture.width)  # one bit becomes four bytes
            check_array(path, size, np.dtype(np.int32), path.stat().st_size, 32 * DEFLATE_RATIO)
            values = np.array(picture)
    if picture.mode == "L" and depth in (2, 4):  # the library stretches few-bit grey to 0..255
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
