"""DICOM SEG: what carries calibrated probabilities into a PACS, and the mask beside them.

A fractional segmentation has 8 bits, too few to tell a winner from its neighbour. So each case gets two objects on the
images of its series: ``CASE_probability.dcm`` is FRACTIONAL, PROBABILITY, with one segment per foreground class.
``CASE_mask.dcm`` is BINARY, the decision itself.

Arrays are laid on the series by geometry. The affine of the case's NIfTI file and that of the images must describe one
grid, up to the order and direction of the axes.

Codes of structures come from the file that dcmqi's ``itkimage2segimage`` takes. What is read of it:
``segmentAttributes``, a list of lists of segments, and ``SeriesDescription``. The ``labelID`` of a segment is the
number of its class; every class but 0 has one. All else in the file stays unread. Without a file, all structures are
coded as tissue, under their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from segcal.atomic import written
from segcal.cases.base import CaseError
from segcal.cases.files import FileCases
from segcal.cases.nifti_file import open_nifti
from segcal.cases.write import nifti_of
from segcal.documents import parse_json, read_text
from segcal.errors import InputError
from segcal.integrations.attach import need
from segcal.version import __version__

# Voxels: how far two grids may be apart and still be one.
TOLERANCE = 1e-2
# As long as DICOM allows: SH and LO.
Short = Annotated[str, Meta(min_length=1, max_length=16)]
Long = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\\\x00-\x1f]*$")]
# Anatomical structure, as SNOMED CT calls it now and did before, and as SNOMED RT did.
ANATOMICAL = ("91723000", "123037004", "T-D000A")


class Code(Struct, frozen=True):
    """A code of a coding scheme, such as SNOMED CT (SCT)."""

    value: Short = field(name="CodeValue")
    scheme: Short = field(name="CodingSchemeDesignator")
    meaning: Long = field(name="CodeMeaning")

    def coded(self) -> Any:
        """Return it as highdicom takes it."""
        return need("highdicom", "dicom").sr.CodedConcept(self.value, self.scheme, self.meaning)


TISSUE = Code("85756007", "SCT", "Tissue")


class Segment(Struct, frozen=True):
    """One structure."""

    number: Annotated[int, Meta(ge=1)] = field(name="labelID")
    category: Code = field(name="SegmentedPropertyCategoryCodeSequence")
    kind: Code = field(name="SegmentedPropertyTypeCodeSequence")
    kind_modifier: Code | None = field(name="SegmentedPropertyTypeModifierCodeSequence", default=None)
    region: Code | None = field(name="AnatomicRegionSequence", default=None)
    region_modifier: Code | None = field(name="AnatomicRegionModifierSequence", default=None)
    label: Long | None = field(name="SegmentLabel", default=None)

    @property
    def site(self) -> tuple[Code, Code | None] | None:
        """Where it is, and on which side; an anatomical structure is its own location."""
        if self.region is not None:
            return self.region, self.region_modifier
        return (self.kind, self.kind_modifier) if self.category.value in ANATOMICAL else None


class _File(Struct):
    segments: list[list[Segment]] = field(name="segmentAttributes")
    description: Long | None = field(name="SeriesDescription", default=None)


@dataclass(frozen=True)
class Segments:
    """The structures, class 1 first, and what the series with them is called."""

    segments: tuple[Segment, ...]
    description: str


def read_segments(path: Path | None, structures: Sequence[str], description: str | None = None) -> Segments:
    """Return the codes of structures (class 1 first) from a file, if there is one; a description overrides its own."""
    if path is None:
        plain = [Segment(number, TISSUE, TISSUE) for number in range(1, len(structures) + 1)]
        found = _File([plain])
    else:
        try:
            found = msgspec.convert(parse_json(read_text(path)), _File)
        except ValueError as error:
            raise InputError(
                f"{path} has no codes of segments ({error}), but a file as dcmqi takes it is needed. Correct it."
            ) from None
    try:
        msgspec.convert(description, Long | None)
    except ValueError:
        raise InputError(f"description is {description!r}, but 1 to 64 characters are needed. Shorten it.") from None
    segments = sorted((each for some in found.segments for each in some), key=lambda each: each.number)
    wanted = dict(enumerate(structures, start=1))
    if [each.number for each in segments] != list(wanted):
        have = ", ".join(str(each.number) for each in segments) or "none"
        need_all = ", ".join(f"{number} ({name})" for number, name in wanted.items())
        raise InputError(f"{path} has segments for labelID {have}, but the structures are {need_all}. Correct it.")
    for each in segments:
        other = next((n for n, name in wanted.items() if name.casefold() == (each.label or "").casefold()), each.number)
        if other != each.number:
            raise InputError(
                f"{path} calls labelID {each.number} {each.label!r}, but that is the name of class {other}. Correct it."
            )
    labels = [each.label or wanted[each.number][:64] for each in segments]
    named = (msgspec.structs.replace(one, label=label) for one, label in zip(segments, labels, strict=True))
    return Segments(tuple(named), description or found.description or "segcal")


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
            "it has no NIfTI file, but its position among the DICOM images is read from one. Give predictions as NIfTI "
            "or as nnU-Net folders.",
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
