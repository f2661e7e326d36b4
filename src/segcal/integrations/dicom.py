"""DICOM SEG: what carries calibrated probabilities into a PACS, and the mask beside them.

A fractional segmentation has 8 bits, too few to tell a winner from its neighbour; so each case gets two objects on the
images of its series: ``CASE_probability.dcm`` (FRACTIONAL, PROBABILITY, one segment per foreground class) and
``CASE_mask.dcm`` (BINARY), which is the decision itself.

Arrays are laid on the series by geometry, not by luck: the affine of the case's NIfTI file and that of the images must
be the same grid up to the order and direction of the axes.
"""

from pathlib import Path
from typing import Any

import numpy as np

from segcal.atomic import written
from segcal.cases.base import CaseError
from segcal.cases.files import FileCases
from segcal.cases.nifti_file import open_nifti
from segcal.cases.write import nifti_of
from segcal.integrations.calibrated import need
from segcal.integrations.segments import Segment, Segments
from segcal.version import __version__

# Voxels: how far two grids may be apart and still be one.
TOLERANCE = 1e-2


def write_dicom_seg(
    probs: np.ndarray, cases: FileCases, case_id: str, series: Path, folder: Path, coded: Segments
) -> list[Path]:
    """Write both objects of a case and return the files.

    Args:
        probs: ``(classes, *space)``; class 0 is the background and has no segment.
        cases: they know the geometry of the case.
        case_id: the case.
        series: the folder of the DICOM images.
        folder: where to write.
        coded: the structures.
    """
    images = read_series(series, case_id)
    laid = _on_series(probs, cases, case_id, images)
    mask = np.stack([laid.argmax(0) == number for number in range(1, len(laid))], axis=-1)
    made = []
    for kind, values in (("probability", np.moveaxis(laid[1:], 0, -1)), ("mask", mask)):
        path = folder / f"{case_id}_{kind}.dcm"
        with written(path) as beside:
            _segmentation(images, values, coded, kind).save_as(beside)
        made.append(path)
    return made


def _segmentation(images: list[Any], values: np.ndarray, coded: Segments, kind: str) -> Any:
    highdicom, coding = need("highdicom", "dicom"), need("pydicom.sr.codedict", "dicom")
    algorithm = highdicom.AlgorithmIdentificationSequence(
        name="segcal", version=__version__, family=coding.codes.DCM.ArtificialIntelligence
    )
    fractional = kind == "probability"
    found = highdicom.seg.Segmentation(
        source_images=images,
        pixel_array=values.astype(np.float32) if fractional else values.astype(np.uint8),
        segmentation_type="FRACTIONAL" if fractional else "BINARY",
        segment_descriptions=[_segment(one, algorithm) for one in coded.segments],
        series_instance_uid=highdicom.UID(),
        series_number=900 if fractional else 901,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="segcal",
        manufacturer_model_name="segcal",
        software_versions=__version__,
        device_serial_number="0",
        fractional_type="PROBABILITY" if fractional else None,
        content_label=kind.upper(),
        omit_empty_frames=False,
    )
    return described(found, coded.description, kind)


def described(found: Any, series: str, kind: str) -> Any:
    """Return an object with the description of its series; names may have letters of any language."""
    found.SpecificCharacterSet = "ISO_IR 192"
    found.SeriesDescription = f"{series[: 63 - len(kind)]} {kind}"
    return found


def _segment(segment: Segment, algorithm: Any) -> Any:
    """Return the description of a segment with all of its codes."""
    found = need("highdicom", "dicom").seg.SegmentDescription(
        segment_number=segment.number,
        segment_label=segment.label,
        segmented_property_category=segment.category.coded(),
        segmented_property_type=segment.kind.coded(),
        algorithm_type="AUTOMATIC",
        algorithm_identification=algorithm,
        anatomic_regions=None if segment.region is None else [segment.region.coded()],
    )
    if segment.kind_modifier is not None:
        kind = found.SegmentedPropertyTypeCodeSequence[0]
        kind.SegmentedPropertyTypeModifierCodeSequence = [segment.kind_modifier.coded()]
    if segment.region is not None and segment.region_modifier is not None:
        found.AnatomicRegionSequence[0].AnatomicRegionModifierSequence = [segment.region_modifier.coded()]
    return found


def read_series(series: Path, case_id: str) -> list[Any]:
    """Return the images of a series in their order along the stack."""
    pydicom = need("pydicom", "dicom")
    need("highdicom", "dicom")
    files = sorted(path for path in series.rglob("*") if path.is_file()) if series.is_dir() else []
    images = [pydicom.dcmread(path, stop_before_pixels=True) for path in files if pydicom.misc.is_dicom(path)]
    if not images:
        raise CaseError(case_id, f"{series} has no DICOM images, but a segmentation lies on some. Check the folder.")
    if len({image.SeriesInstanceUID for image in images}) > 1:
        raise CaseError(case_id, f"{series} has images of several series, but one is needed. Move the others away.")
    across = np.cross(*np.asarray(images[0].ImageOrientationPatient, float).reshape(2, 3))
    return sorted(images, key=lambda image: float(np.dot(across, np.asarray(image.ImagePositionPatient, float))))


def _on_series(probs: np.ndarray, cases: FileCases, case_id: str, images: list[Any]) -> np.ndarray:
    """Return probabilities ``(classes, image, row, column)``."""
    like = nifti_of(cases, case_id)
    if like is None:
        raise CaseError(
            case_id,
            "it has no NIfTI file, but its place among the DICOM images is read from one. Give predictions as NIfTI or "
            "as nnU-Net folders.",
        )
    patient = np.diag([-1.0, -1.0, 1.0, 1.0]) @ open_nifti(like).affine  # RAS to LPS
    axes = cases.members[0].facts().label_axes
    values = probs if axes in (None, "xyz") else probs.transpose(0, 3, 2, 1)  # now (x, y, z), as in the file
    grid = np.linalg.inv(stack_affine(images)) @ patient
    turned = np.round(grid[:3, :3])
    found = tuple(int(axis) for axis in np.abs(turned).argmax(1))  # of each axis of the stack, that of the array
    shape = (len(images), int(images[0].Rows), int(images[0].Columns))
    if np.abs(grid[:3, :3] - turned).max() > TOLERANCE or sorted(found) != [0, 1, 2]:
        raise CaseError(
            case_id, f"{like.name} is another grid than the DICOM images, but both must be one. Resample it."
        )
    laid = values.transpose(0, *(axis + 1 for axis in found))
    backwards = [axis for axis in range(3) if turned[axis, found[axis]] < 0]
    first = np.array([shape[axis] - 1 if axis in backwards else 0 for axis in range(3)])
    if laid.shape[1:] != shape or np.abs(grid[:3, 3] - first).max() > TOLERANCE:
        raise CaseError(
            case_id,
            f"{like.name} has {laid.shape[1:]} voxels in the order of the DICOM images, which are {shape}, or begins "
            "elsewhere, but both must be one grid. Export the prediction on the images of this series.",
        )
    return np.ascontiguousarray(np.flip(laid, tuple(axis + 1 for axis in backwards)))


def stack_affine(images: list[Any]) -> np.ndarray:
    """Return the matrix from (image, row, column) to millimetres of the patient."""
    across_columns, across_rows = np.asarray(images[0].ImageOrientationPatient, float).reshape(2, 3)
    rows, columns = (float(value) for value in images[0].PixelSpacing)
    start, end = (np.asarray(image.ImagePositionPatient, float) for image in (images[0], images[-1]))
    step = (end - start) / max(1, len(images) - 1)
    if len(images) == 1:
        step = np.cross(across_columns, across_rows) * float(images[0].get("SliceThickness", 1) or 1)
    matrix = np.eye(4)
    matrix[:3] = np.stack([step, across_rows * rows, across_columns * columns, start], axis=1)
    return matrix
