"""DICOM SR: what :func:`segcal.trust` says of a case, as a report that a PACS takes.

A report is a Comprehensive SR with the template TID 1500 (Measurement Report), one per case. It has one group of
measurements per structure (TID 1411 with a DICOM SEG to refer to, else TID 1501). It holds the numbers of its row, the
verdict and its reason. One group for the case refers to the images. What has no code in a standard has the name of its
column in ``trust.csv`` as its code, in the private scheme 99SEGCAL. Reports are complete and unverified: nobody has
looked at them.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.arguments import typed
from segcal.atomic import written
from segcal.cases.base import CaseError
from segcal.cases.parallel import map_ids
from segcal.integrations.attach import need
from segcal.integrations.dicom import Code, Segment, Segments, described, read_segments, read_series, stack_affine
from segcal.trust.guarantees import masks_folder
from segcal.trust.result import CaseVerdict, Trust, TrustRow
from segcal.version import __version__

SCHEME = "99SEGCAL"
VOLUME, ONE = Code("118565006", "SCT", "Volume"), Code("1", "UCUM", "no units")
UNITS = {"ml": Code("ml", "UCUM", "ml"), "voxels": Code("{voxels}", "UCUM", "voxels")}
# The numbers of a row, in this order; those with a unit are volumes.
NUMBERS = {
    "expected_dice": "Expected Dice coefficient",
    "dice_low": "Dice coefficient, lower end of the interval",
    "dice_high": "Dice coefficient, upper end of the interval",
    "dice_below_tau": "Probability that the Dice coefficient is below tau",
    "tau": "Tau, the Dice coefficient below which a mask is bad",
    "volume_low": "Volume, lower end of the interval",
    "volume_high": "Volume, upper end of the interval",
}
LEVEL = Code("level", SCHEME, "Level of the intervals")
VERDICT, REASON = Code("verdict", SCHEME, "Verdict on the mask"), Code("121106", "DCM", "Comment")
VERDICTS = {True: Code("review", SCHEME, "To be reviewed"), False: Code("pass", SCHEME, "No reason to review")}
# Left, right, and both, in SNOMED CT and SNOMED RT.
LATERALITIES = ("7771000", "24028007", "51440002", "G-A100", "G-A101", "G-A102")
# How far sizes of voxels in two headers may be apart.
ROUNDING = 1e-3


@typed
def write_reports(
    result: Trust,
    folder: str | os.PathLike[str],
    series: str | os.PathLike[str],
    seg: str | os.PathLike[str] | None = None,
    segments: str | os.PathLike[str] | None = None,
    description: str | None = None,
    failed: Callable[[CaseError], None] | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write a DICOM SR per case, ``CASE.dcm``, and return the files.

    Args:
        result: what :func:`segcal.trust` returned; class 0 must not be among its structures.
        folder: where to write; new or empty.
        series: a folder with one sub-folder of DICOM images per case, named like it.
        seg: the folder that :func:`segcal.view` wrote with ``to="dicom-seg"``, for reports to refer to.
        segments: a file with the codes of the structures (:mod:`segcal.integrations.dicom`).
        description: of the series that are written.
        failed: takes the error of a case that is not usable; without it the error is raised.
        overwrite: write into a folder that is not empty.
    """
    structures = [row["structure"] for row in result.bounds]
    coded = read_segments(None if segments is None else Path(segments), structures, description)
    rows: dict[str, list[TrustRow]] = {}
    for row in result.rows:
        rows.setdefault(row["case"], []).append(row)
    cases = {case["case"]: case for case in result.cases()}

    def write(case_id: str) -> str:
        images = read_series(Path(series) / case_id, case_id)
        mask = None if seg is None else _mask_of(Path(seg) / f"{case_id}_mask.dcm", case_id, images, rows[case_id])
        with written(place / f"{case_id}.dcm") as beside:
            _report(images, mask, rows[case_id], cases[case_id], result.level, coded).save_as(beside)
        return f"{case_id}.dcm"

    with masks_folder(Path(folder), overwrite, whole=True) as place:
        return [Path(folder) / name for _, name in map_ids(list(rows), write, 1, failed)]


def _report(
    images: list[Any], mask: Any, rows: Sequence[TrustRow], case: CaseVerdict, level: float, coded: Segments
) -> Any:
    highdicom, codes = need("highdicom", "dicom"), need("pydicom.sr.codedict", "dicom").codes
    sr = highdicom.sr
    device = sr.ObserverContext(
        codes.DCM.Device,
        sr.DeviceObserverIdentifyingAttributes(
            highdicom.UID(), manufacturer_name="segcal", model_name="segcal", serial_number="0"
        ),
    )
    groups = [_structure(row, segment, mask) for row, segment in zip(rows, coded.segments, strict=True)]
    whole = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(identifier=case["case"], uid=highdicom.UID()),
        source_images=[sr.SourceImageForMeasurementGroup.from_source_image(image) for image in images],
        measurements=[sr.Measurement(LEVEL.coded(), level, ONE.coded())],
        qualitative_evaluations=[_verdict(case["review"])],
    )
    content = sr.MeasurementReport(
        observation_context=sr.ObservationContext(observer_device_context=device),
        procedure_reported=codes.SCT.ImagingProcedure,
        imaging_measurements=[_reasoned(whole, case["reason"]), *groups],
        title=codes.DCM.ImagingMeasurementReport,
    )
    report = sr.ComprehensiveSR(
        evidence=images if mask is None else [*images, mask],
        content=content,
        series_instance_uid=highdicom.UID(),
        series_number=902,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="segcal",
        is_complete=True,
    )
    return described(report, coded.description, "trust")


def _structure(row: TrustRow, segment: Segment, mask: Any) -> Any:
    """Return the group of one structure."""
    highdicom = need("highdicom", "dicom")
    sr, unit = highdicom.sr, UNITS[row["unit"]]
    found = [sr.Measurement(VOLUME.coded(), row["volume"], unit.coded())]
    for name, meaning in NUMBERS.items():
        if (value := row[name]) is not None:  # type: ignore[literal-required]
            own = unit if name.startswith("volume") else ONE
            found.append(sr.Measurement(Code(name, SCHEME, meaning).coded(), value, own.coded()))
    given = {
        "tracking_identifier": sr.TrackingIdentifier(identifier=row["structure"], uid=highdicom.UID()),
        "finding_category": segment.category.coded(),
        "finding_type": segment.kind.coded(),
        "algorithm_id": sr.AlgorithmIdentification("segcal", __version__),
        "finding_sites": None if segment.site is None else [_site(*segment.site)],
        "measurements": found,
        "qualitative_evaluations": [_verdict(row["review"])],
    }
    if mask is None:
        return _reasoned(sr.MeasurementsAndQualitativeEvaluations(**given), row["reason"])
    on = sr.SourceSeriesForSegmentation(mask.ReferencedSeriesSequence[0].SeriesInstanceUID)
    place = sr.ReferencedSegment(mask.SOPClassUID, mask.SOPInstanceUID, segment.number, source_series=on)
    group = sr.VolumetricROIMeasurementsAndQualitativeEvaluations(referenced_segment=place, **given)
    return _reasoned(group, row["reason"])


def _site(place: Code, modifier: Code | None) -> Any:
    own = {} if modifier is None else {"topographical_modifier": modifier.coded()}
    if modifier is not None and modifier.value in LATERALITIES:
        own = {"laterality": modifier.coded()}
    return need("highdicom", "dicom").sr.FindingSite(place.coded(), **own)


def _verdict(review: bool) -> Any:
    return need("highdicom", "dicom").sr.QualitativeEvaluation(VERDICT.coded(), VERDICTS[review].coded())


def _reasoned(group: Any, reason: str) -> Any:
    """Return a group with the reason of its verdict, if there is one."""
    if reason:
        sr = need("highdicom", "dicom").sr
        group[0].ContentSequence.append(sr.TextContentItem(REASON.coded(), reason, "CONTAINS"))
    return group


def _mask_of(path: Path, case_id: str, images: list[Any], rows: Sequence[TrustRow]) -> Any:
    """Return the DICOM SEG of a case; refuse one of other images, of other structures, or with other masks."""
    if not path.is_file():
        raise CaseError(case_id, f"{path} is missing, but the report refers to it. Write it with segcal view.")
    mask = need("highdicom", "dicom").seg.segread(path)
    on, known = {each.SeriesInstanceUID for each in mask.ReferencedSeriesSequence}, images[0].SeriesInstanceUID
    if on != {known} or list(mask.segment_numbers) != list(range(1, len(rows) + 1)):
        raise CaseError(
            case_id,
            f"{path} has {mask.number_of_segments} segments on series {', '.join(sorted(on))}, but {len(rows)} on "
            f"{known} are needed. Write it again with segcal view.",
        )
    voxels, frames = np.zeros(len(rows)), need("pydicom.pixels", "dicom").iter_pixels(mask)
    for frame, of in zip(frames, mask.PerFrameFunctionalGroupsSequence, strict=True):
        voxels[of.SegmentIdentificationSequence[0].ReferencedSegmentNumber - 1] += frame.sum()
    size = abs(np.linalg.det(stack_affine(images))) / 1000  # ml
    for row, count in zip(rows, voxels, strict=True):
        expected = row["mask_volume"] / (size if row["unit"] == "ml" else 1)
        if abs(count - expected) > 0.5 + ROUNDING * expected:
            raise CaseError(
                case_id,
                f"{path} has {count:.0f} voxels of {row['structure']}, but the mask that was judged has "
                f"{expected:.0f}. Write it again with segcal view, from the same predictions.",
            )
    return mask
