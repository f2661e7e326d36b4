"""Images beside the scores, for calibrators that look at them: ``(channels, *space)``, values as stored.

One file a case (npy, NIfTI, PNG, JPEG), or one a channel as nnU-Net has them (``CASE_0000.nii.gz``, ``CASE_0001...``).
"""

import re
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from segcal.cases import nifti_file
from segcal.cases.bounded import DEFLATE_RATIO, check_array, map_npy
from segcal.cases.labels import Axes, find_files
from segcal.documents import reading
from segcal.errors import InputError

EXTENSIONS = (*nifti_file.EXTENSIONS, ".npy", ".png", ".jpg", ".jpeg")


class ImageFolder:
    """The images of one folder, read one case at a time.

    Args:
        folder: where they are.
        axes: the order of NIfTI axes in the scores' arrays, as for labels.
    """

    def __init__(self, folder: Path, axes: Axes | None = None) -> None:
        if not folder.is_dir():
            raise InputError(
                f"images {folder} is not a folder, but one with an image a case is needed. Check the path."
            )
        self.folder = folder
        self.axes = axes
        self.files: dict[str, list[Path]] = {}
        for stem, path in find_files(folder, EXTENSIONS).items():
            self.files.setdefault(stem, []).append(path)
            channel = re.fullmatch(r"(.+)_\d{4}", stem)
            if channel:
                self.files.setdefault(channel[1], []).append(path)

    def read(self, case_id: str, space: tuple[int, ...]) -> np.ndarray:
        """Read the image of a case whose scores have this space."""
        if case_id not in self.files:
            raise InputError(f"{self.folder} has no image for it, but one is needed. Add {case_id}.* or leave it out.")
        image = np.concatenate([_channels(path, space, self.axes) for path in self.files[case_id]])
        if image.shape[1:] != space:
            raise InputError(
                f"{self.files[case_id][0]} has space {image.shape[1:]}, but its scores have {space}. "
                "Images must be at the resolution of the scores."
            )
        return image


def _channels(path: Path, space: tuple[int, ...], axes: Axes | None) -> np.ndarray:
    name = path.name.lower()
    if name.endswith(nifti_file.EXTENSIONS):
        image = nifti_file.open_nifti(path)
        if axes == "zyx_ras":
            with reading(path):
                image = nifti_file.load_extra("nibabel", "nifti").as_closest_canonical(image)
        values = nifti_file.nifti_values(image, path).astype(np.float32)
        values = values.transpose() if axes in ("zyx", "zyx_ras") else values
    elif name.endswith(".npy"):
        values = np.asarray(map_npy(path), np.float32)
    else:
        values = _picture(path)
    # A picture of one slice, as nnU-Net keeps it, and an image without a channel axis.
    if values.ndim == len(space) and values.shape[1:] != space[1:] and space[0] == 1:
        values = values[:, None]
    return values[None] if values.ndim == len(space) else values


def _picture(path: Path) -> np.ndarray:
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=("PNG", "JPEG")) as picture:
            size = (3, picture.height, picture.width)  # one bit may become three numbers of four bytes
            check_array(path, size, np.dtype(np.float32), path.stat().st_size, 96 * DEFLATE_RATIO)
            grey = picture.mode in ("1", "L", "I", "I;16", "I;16B", "F")
            values = np.array(picture if grey else picture.convert("RGB"), np.float32)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
