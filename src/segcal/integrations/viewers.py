"""``segcal view``: calibrated probabilities as files that viewers open, in the geometry of the predictions.

- ``nifti``: one float32 volume per class, ``CASE/CLASS.nii.gz`` (3D Slicer, ITK-SNAP, napari, FSLeyes).
- ``bids``: the same with the names of BIDS derivatives, ``CASE_label-CLASS_probseg.nii.gz``.
- ``contours``: one label map per class, ``CASE/CLASS_levels.nii.gz``, whose value is the number of levels (0.05, 0.5
  and 0.95 unless told) that the probability reaches: outlines of it are iso-contours.
- ``geojson``: polygons of a map with a probability each, ``CASE.geojson`` (:mod:`segcal.integrations.maps`).
- ``dicom-seg``: two DICOM SEG objects per case (:mod:`segcal.integrations.dicom`).

Nothing else goes into the folder but hidden records of what was made from what: run again after an interruption, the
same call goes on with the cases that are missing or changed. Label maps are never made of rounded probabilities.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from segcal.arguments import typed
from segcal.atomic import naming, temporary
from segcal.cases.base import Case, CaseError
from segcal.cases.files import FileCases
from segcal.cases.parallel import map_cases
from segcal.cases.records import Records, content_digest
from segcal.cases.write import write_volume
from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import calibrator_digest
from segcal.integrations.calibrated import calibrated_probs
from segcal.integrations.dicom import write_dicom_seg
from segcal.integrations.maps import write_polygons
from segcal.integrations.segments import read_segments
from segcal.names import class_titles, file_names
from segcal.target import claim

FORMS = ("nifti", "bids", "contours", "geojson", "dicom-seg")
LEVELS = (0.05, 0.5, 0.95)


@typed
def view(
    fitted: Fitted,
    cases: FileCases,
    folder: str | Path,
    to: str = "nifti",
    levels: Sequence[float] = LEVELS,
    series: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    failed: Callable[[CaseError], None] | None = None,
    *,
    segments: str | Path | None = None,
    description: str | None = None,
) -> list[Path]:
    """Calibrate cases and write them for a viewer; return the files.

    Args:
        fitted: the calibrator.
        cases: the predictions, of :func:`segcal.open_cases`.
        folder: a new or empty folder, or one that the same call began to fill.
        to: "nifti", "bids", "contours", "geojson" or "dicom-seg".
        levels: of the contours, ascending.
        series: for DICOM SEG: a folder with one sub-folder of DICOM images per case, named like it.
        progress: called with the id of each case when it is done.
        failed: takes the error of a case that is not usable; without it the error is raised.
        segments: for DICOM SEG: a file with the codes of the structures (:mod:`segcal.integrations.segments`).
        description: for DICOM SEG: of the series that are written.
    """
    target, place = Path(folder), None if series is None else Path(series)
    classes = fitted.class_names or cases.class_names or [f"class{n}" for n in range(cases.num_classes)]
    names = file_names(classes)
    _check(to, levels, place, segments is not None or description is not None)
    titles = class_titles(fitted.class_names or cases.class_names, cases.num_classes)
    coded = read_segments(None if segments is None else Path(segments), titles[1:], description) if place else None
    made_by = f"view {calibrator_digest(fitted.calibrator)} {to} {[*map(float, levels)]} {coded or [*classes]}"
    Records(target).require_only(made_by, "files for a viewer")
    check_match(fitted, cases)
    records, tell = Records(target), progress or (lambda case_id: None)

    def made_from(case_id: str) -> str:
        images = "" if place is None else content_digest(place / case_id)
        return f"{made_by} {hashlib.sha256(f'{images} {cases.identity(case_id)}'.encode()).hexdigest()}"

    def write(case: Case) -> tuple[Path, ...]:
        probs, key = _probabilities(fitted, case), made_from(case.id)
        with naming(target / case.id), temporary(target) as beside:
            if place is not None and coded is not None:
                files = write_dicom_seg(probs, cases, case.id, place / case.id, beside, coded)
            elif to == "geojson":
                files = write_polygons(probs, cases, case, beside, classes)
            else:
                shown = levels if to == "contours" else None
                files = _write_maps(probs, cases, case, beside, names, shown, to == "bids")
            own = [path.relative_to(beside).as_posix() for path in files]
            records.require_own(case.id, own)
            return records.place(case.id, key, beside, own)

    with claim(target):
        found = {case_id: records.done(case_id, made_from(case_id)) for case_id in cases.ids}
        made = [target / name for record in found.values() if record is not None for name in record.files]
        for case_id in (case_id for case_id, record in found.items() if record is not None):
            tell(case_id)
        missing = cases.subset(case_id for case_id, record in found.items() if record is None)
        for case_id, files in map_cases(missing, write, 1, failed):
            made += files
            tell(case_id)
    return made


def _check(to: str, levels: Sequence[float], series: Path | None, coded: bool) -> None:
    check_choice(to, "form", FORMS)
    if (to == "dicom-seg") != (series is not None):
        raise InputError(
            f"series is {series}, but DICOM SEG, and nothing else, lies on images. Name their folder, or leave it out."
        )
    if coded and to != "dicom-seg":
        raise InputError(f"to is {to}, but segments and description are for DICOM SEG. Leave them out.")
    if list(levels) != sorted(set(levels)) or not len(levels) or not all(0 < level < 1 for level in levels):
        raise InputError(f"levels is {list(levels)}, but ascending numbers between 0 and 1 are needed. Correct them.")


def _probabilities(fitted: Fitted, case: Case) -> np.ndarray:
    """Return probabilities ``(classes, *space)``; outside of what was predicted, the background is certain."""
    probs = calibrated_probs(fitted.calibrator, case.logits, case.id).numpy()
    if case.mask is not None:
        outside = ~case.mask.numpy()
        probs[:, outside] = 0
        probs[0, outside] = 1
    return probs


def _write_maps(
    probs: np.ndarray,
    cases: FileCases,
    case: Case,
    folder: Path,
    names: list[str],
    levels: Sequence[float] | None,
    bids: bool,
) -> list[Path]:
    made = []
    for name, values in zip(names, probs, strict=True):
        path = folder / case.id / (f"{name}.nii.gz" if levels is None else f"{name}_levels.nii.gz")
        if bids:
            path = folder / f"{case.id}_label-{name}_probseg.nii.gz"
        if levels is not None:
            values = np.sum([values >= level for level in levels], axis=0, dtype=np.uint8)
        path.parent.mkdir(exist_ok=True)
        write_volume(cases, case.id, values, path, case.spacing)
        made.append(path)
    return made
