"""One confidence map a case, in a form that a viewer opens.

Pictures become 8-bit grey PNG, white for full confidence. Volumes become float32 NIfTI: in the geometry of the file
they belong to where that is NIfTI (the scores themselves, or the label map that nnU-Net wrote beside them), and with
the voxel size that is known otherwise.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from segcal.cases.files import FileCases
from segcal.cases.formats.nifti import save_like
from segcal.cases.nifti_file import EXTENSIONS, load_extra, open_nifti

FOLDER = "confidence"


def write_confidence(
    cases: FileCases,
    case_id: str,
    confidence: np.ndarray,
    folder: Path,
    spacing: tuple[float, ...] | None = None,
) -> Path:
    """Write the confidence ``(*space)`` of one case into a sub-folder of `folder` and return the file.

    Beside the predictions themselves no extra file may lie: tools that read the folder take every file for a case.

    Args:
        cases: where the case comes from.
        case_id: which case.
        confidence: the highest probability of each voxel.
        folder: where its calibrated scores go.
        spacing: the voxel size along each axis, used where no NIfTI file knows it.
    """
    flat = len([size for size in confidence.shape if size > 1]) <= 2
    ending = ".png" if flat and _nifti_of(cases, case_id) is None else ".nii.gz"
    path = folder / FOLDER / f"{case_id}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        picture = np.atleast_2d(np.squeeze(confidence))
        Image.fromarray(np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(path, format="PNG")
    else:
        _write_volume(cases, case_id, confidence.astype(np.float32), path, spacing)
    return path


def _nifti_of(cases: FileCases, case_id: str) -> Path | None:
    """Return the NIfTI file whose geometry the case has."""
    files = cases.members[0].files.get(case_id, ())
    return next((path for path in files if path.name.lower().endswith(EXTENSIONS) and path.is_file()), None)


def _write_volume(
    cases: FileCases, case_id: str, confidence: np.ndarray, path: Path, spacing: tuple[float, ...] | None
) -> None:
    nibabel = load_extra("nibabel", "nifti")
    like = _nifti_of(cases, case_id)
    if like is None:  # arrays are (z, y, x), files (x, y, z)
        sizes = [*(spacing or ())[::-1], 1.0, 1.0, 1.0][:3]
        nibabel.save(nibabel.Nifti1Image(confidence.T, np.diag([*sizes, 1.0])), path)
        return
    image = open_nifti(like)
    axes = cases.members[0].facts().label_axes
    values = confidence if axes in (None, "xyz") else confidence.T
    if axes == "zyx_ras":
        values = _turned_back(values, image)
    # A picture may have more axes of length one here than there, and the scores have one of classes.
    space = tuple(image.shape) if math.prod(image.shape) == values.size else values.shape
    save_like(_of_space(image, space), values.reshape(space), path)


def _turned_back(values: np.ndarray, image: Any) -> np.ndarray:
    """Return values that were read in RAS orientation in the orientation of the file."""
    orientations = load_extra("nibabel", "nifti").orientations
    turn = orientations.ornt_transform(orientations.axcodes2ornt("RAS"), orientations.io_orientation(image.affine))
    return np.ascontiguousarray(orientations.apply_orientation(values, turn))


def _of_space(image: Any, space: tuple[int, ...]) -> Any:
    """Return an image with the header of another, without its axis of classes."""
    header = image.header.copy()
    header.set_data_shape(space)
    return type(image)(np.zeros(space, np.uint8), image.affine, header)
