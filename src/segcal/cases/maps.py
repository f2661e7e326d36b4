"""One confidence map a case, in a form that a viewer opens.

Pictures become 8-bit grey PNG, white for full confidence. Volumes become float32 NIfTI, in the geometry of the file
they belong to where that is NIfTI, and with the voxel size that is known otherwise.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from segcal.cases.files import FileCases
from segcal.cases.nifti_file import EXTENSIONS, load_extra, open_nifti

FOLDER = "confidence"


def write_confidence(cases: FileCases, case_id: str, confidence: np.ndarray, folder: Path) -> Path:
    """Write the confidence ``(*space)`` of one case into a sub-folder and return the file.

    Beside the predictions themselves no extra file may lie: tools that read the folder take every file for a case.
    """
    target = folder / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    picture = np.squeeze(confidence)
    if picture.ndim == 2:
        path = target / f"{case_id}.png"
        beside = path.with_name(f".{path.name}")
        Image.fromarray(np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(beside, format="PNG")
    else:
        path = target / f"{case_id}.nii.gz"
        beside = path.with_name(f".{path.name}")
        nibabel = load_extra("nibabel", "nifti")
        values, affine = _geometry(cases, case_id, confidence.astype(np.float32))
        nibabel.save(nibabel.Nifti1Image(values, affine), beside)
    beside.replace(path)
    return path


def _geometry(cases: FileCases, case_id: str, confidence: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the values in the axes of the NIfTI file they belong to, and its affine."""
    member = cases.members[0]
    files = [path for path in member.files.get(case_id, ()) if path.name.endswith(EXTENSIONS)]
    beside = [member.folder / f"{case_id}{extension}" for extension in EXTENSIONS]
    for path in [*files, *(path for path in beside if path.is_file())]:
        image = open_nifti(path)
        space = tuple(image.shape[: confidence.ndim])
        if space == confidence.shape and path in files:
            return confidence, image.affine
        if space == confidence.shape[::-1]:
            return confidence.T, image.affine
    stored = member.read(case_id)
    return confidence.T, np.diag([*(stored.spacing or (1.0,) * confidence.ndim)[::-1], 1.0])
