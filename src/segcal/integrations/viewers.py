"""``segcal view``: calibrated probabilities as files that viewers open, in the geometry of the predictions.

- ``nifti``: one float32 volume per class, ``CASE/CLASS.nii.gz`` (3D Slicer, ITK-SNAP, napari, FSLeyes).
- ``bids``: the same with the names of BIDS derivatives, ``CASE_label-CLASS_probseg.nii.gz``.
- ``contours``: one label map per class, ``CASE/CLASS_levels.nii.gz``, whose value is the number of levels (0.05, 0.5
  and 0.95 by default) that the probability reaches. Its outlines are iso-contours.
- ``geojson``: polygons of a map for GIS, ``CASE.geojson``: every connected part of every structure with its mean
  calibrated probability. GeoJSON (RFC 7946) is in longitude and latitude of WGS 84, so edges of pixels are carried
  there from the system of the raster. Polygons are connected by edges of pixels, and background and nodata have none.
  `area` is in square metres where the raster is in a length. A style of QGIS lies beside it.
- ``dicom-seg``: two DICOM SEG objects per case (:mod:`segcal.integrations.dicom`).

Beside these the folder has hidden records of the inputs of each file. After an interruption the same call goes on with
the cases that are missing or changed. Label maps are never made of rounded probabilities.

Objects (:class:`ObjectMaps`) are NIfTI or DICOM SEG. ``CASE_objects.nii.gz`` holds the number of the object at each
voxel, and ``CASE_real.nii.gz`` the probability that it is real. Of several structures, each has files of its own,
``CASE_STRUCTURE_objects.nii.gz``. DICOM SEG has a segment per object, of those that are most likely real, as many as
fit :data:`MOST_VALUES`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from segcal.arguments import typed
from segcal.atomic import written
from segcal.cases.base import Case, CaseError
from segcal.cases.files import FileCases
from segcal.cases.formats.geotiff import GeoTiff
from segcal.cases.parallel import map_cases
from segcal.cases.raster_file import open_raster, polygon_style
from segcal.cases.records import Records, content_digest
from segcal.cases.write import write_volume
from segcal.checks import check_choice
from segcal.documents import json_text
from segcal.errors import InputError, load_extra
from segcal.evaluation.evaluate import check_match
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import calibrator_digest
from segcal.integrations.attach import calibrated_probs
from segcal.integrations.dicom import read_segments, write_dicom_seg
from segcal.names import class_titles, file_names
from segcal.target import claim
from segcal.trust.components import components
from segcal.trust.entry import known_objects
from segcal.trust.objects import ObjectRow

FORMS = ("nifti", "bids", "contours", "geojson", "dicom-seg")
LIBRARIES = {"geojson": ("rasterio", "geo"), "dicom-seg": ("highdicom", "dicom")}
LEVELS = (0.05, 0.5, 0.95)
# Values of all segments of objects of a case: four bytes each.
MOST_VALUES = 1 << 28


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
        segments: for DICOM SEG: a file with the codes of the structures (:mod:`segcal.integrations.dicom`).
        description: for DICOM SEG: of the series that are written.
    """
    target, place = Path(folder), None if series is None else Path(series)
    classes = fitted.class_names or cases.class_names or [f"class{n}" for n in range(cases.num_classes)]
    names = file_names(classes)
    _check(to, levels, place, segments is not None or description is not None, cases)
    titles = class_titles(fitted.class_names or cases.class_names, cases.num_classes)
    coded = read_segments(None if segments is None else Path(segments), titles[1:], description) if place else None
    made_by = f"view {calibrator_digest(fitted.calibrator)} {to} {[*map(float, levels)]} {coded or [*classes]}"
    records, tell = Records(target), progress or (lambda case_id: None)
    records.require_only(made_by, "files for a viewer")
    check_match(fitted, cases)

    def made_from(case_id: str) -> str:
        images = "" if place is None else content_digest(place / case_id)
        return f"{made_by} {hashlib.sha256(f'{images} {cases.identity(case_id)}'.encode()).hexdigest()}"

    def write(case: Case) -> tuple[Path, ...]:
        probs = _probabilities(fitted, case)

        def make(beside: Path) -> Iterable[Path]:
            if place is not None and coded is not None:
                return write_dicom_seg(probs, cases, case.id, place / case.id, beside, coded)
            if to == "geojson":
                return _write_polygons(probs, cases, case, beside, classes)
            return _write_maps(probs, cases, case, beside, names, levels if to == "contours" else None, to == "bids")

        return records.write(case.id, made_from(case.id), make)

    with claim(target):
        found = {case_id: records.done(case_id, partial(made_from, case_id)) for case_id in cases.ids}
        made = [target / name for record in found.values() if record is not None for name in record.files]
        for case_id in (case_id for case_id, record in found.items() if record is not None):
            tell(case_id)
        missing = cases.subset(case_id for case_id, record in found.items() if record is None)
        for case_id, files in map_cases(missing, write, 1, failed):
            made += files
            tell(case_id)
    return made


def _check(to: str, levels: Sequence[float], series: Path | None, coded: bool, cases: FileCases) -> None:
    check_choice(to, "form", FORMS)
    if (to == "dicom-seg") != (series is not None):
        raise InputError(
            f"series is {series}, but DICOM SEG, and nothing else, lies on images. Name their folder, or leave it out."
        )
    if coded and to != "dicom-seg":
        raise InputError(f"to is {to}, but segments and description are for DICOM SEG. Leave them out.")
    if to == "geojson" and not isinstance(member := cases.members[0], GeoTiff):
        raise InputError(f"the cases are {member.name} files, but polygons lie on a map. Use GeoTIFF, or another form.")
    if list(levels) != sorted(set(levels)) or not len(levels) or not all(0 < level < 1 for level in levels):
        raise InputError(f"levels is {list(levels)}, but ascending numbers between 0 and 1 are needed. Correct them.")
    load_extra(*LIBRARIES.get(to, ("nibabel", "nifti")))


def _probabilities(fitted: Fitted, case: Case) -> np.ndarray:
    """Return probabilities ``(classes, *space)``; outside of what was predicted, the background is certain."""
    probs = calibrated_probs(fitted.calibrator, case.logits, case.id, case.mask).numpy()
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
) -> Iterator[Path]:
    for name, values in zip(names, probs, strict=True):
        path = folder / case.id / (f"{name}.nii.gz" if levels is None else f"{name}_levels.nii.gz")
        if bids:
            path = folder / f"{case.id}_label-{name}_probseg.nii.gz"
        if levels is not None:
            values = np.sum([values >= level for level in levels], axis=0, dtype=np.uint8)
        path.parent.mkdir(exist_ok=True)
        write_volume(cases, case.id, values, path, case.spacing)
        yield path


def _write_polygons(probs: np.ndarray, cases: FileCases, case: Case, folder: Path, names: Sequence[str]) -> list[Path]:
    source = cases.members[0].path(case.id)
    with open_raster(source) as file:
        if file.crs is None:
            raise InputError(
                f"{source} has no coordinate reference system, but GeoJSON is in longitude and latitude. "
                "Assign one, for example with gdal_edit.py -a_srs."
            )
        there, crs = file.transform, file.crs
    inside = np.ones(probs.shape[1:], bool) if case.mask is None else case.mask.numpy()
    decision = cases.decision
    structures = decision.structures(len(probs), background=True)
    on = decision.each(torch.from_numpy(decision.stored_mask(probs, decision.probs)), structures).numpy()
    metres = abs(there.determinant) * crs.linear_units_factor[1] ** 2 if crs.is_projected else None
    features = [
        {"type": "Feature", "properties": {"class": names[number], **about}, "geometry": shape}
        for number, own in zip(structures, on, strict=True)
        for about, shape in _parts(probs[number], own & inside, there, crs, metres)
    ]
    path = folder / f"{case.id}.geojson"
    path.write_text(json_text({"type": "FeatureCollection", "features": features}) + "\n", "utf-8")
    path.with_suffix(".qml").write_text(polygon_style(), "utf-8")
    return [path.with_suffix(".qml"), path]


def _parts(
    probs: np.ndarray, on: np.ndarray, there: Any, crs: Any, metres: float | None
) -> Iterator[tuple[dict[str, float | None], Any]]:
    features, warp = (load_extra(f"rasterio.{name}", "geo") for name in ("features", "warp"))
    parts, count = scipy.ndimage.label(on)
    pixels = np.bincount(parts.ravel(), minlength=count + 1)
    means = np.bincount(parts.ravel(), probs.ravel(), count + 1) / np.maximum(pixels, 1)
    for shape, number in features.shapes(parts.astype(np.int32), mask=on, connectivity=4, transform=there):
        size = int(pixels[int(number)])
        about = {"probability": float(means[int(number)]), "pixels": size, "area": metres and size * metres}
        yield about, warp.transform_geom(crs, "EPSG:4326", shape)


class ObjectMaps:
    """Writes the maps of one case after the other; picklable, for several processes.

    Args:
        fitted: with what it knows of objects.
        cases: as they are opened.
        rows: of :func:`segcal.objects`.
        folder: where to; see :func:`segcal.trust.guarantees.masks_folder`.
        series: a folder with one sub-folder of DICOM images per case, for DICOM SEG; None for NIfTI.
    """

    def __init__(
        self, fitted: Fitted, cases: FileCases, rows: Sequence[ObjectRow], folder: Path, series: Path | None = None
    ) -> None:
        self._fitted, self._cases, self._folder, self._series = fitted, cases.with_disagreement(), folder, series
        self._real = {row[:3]: row.p_real for row in rows}
        known, self._titles = known_objects(fitted), class_titles(fitted.class_names, fitted.calibrator.num_classes)
        self._known, self._names = known, file_names(self._titles)

    def places(self, case_id: str) -> list[Path]:
        """Return where the maps of a case go."""
        if self._series is not None:
            return [self._folder / f"{case_id}_{kind}.dcm" for kind in ("probability", "mask")]
        several = len(self._known.structures) > 1
        names = [f"{case_id}_{self._names[number]}" if several else case_id for number in self._known.structures]
        return [self._folder / f"{name}_{kind}.nii.gz" for name in names for kind in ("objects", "real")]

    def __call__(self, case_id: str) -> tuple[Path, ...]:
        """Write one case."""
        case, paths = self._cases.checked(case_id), self.places(case_id)
        space, segments = tuple(case.logits.shape[1:]), []
        structures, smallest = self._known.structures, self._known.rule.smallest
        for place, found in enumerate(components(self._fitted.calibrator, case, structures, smallest)):
            title, numbers = self._titles[found.structure], np.zeros(space, np.int32)
            numbers[found.box] = found.numbers
            real = [self._real.get((case_id, title, k + 1)) or 0.0 for k in range(numbers.max(initial=0))]
            segments += [(chance, f"{title} {k + 1}", found, k + 1) for k, chance in enumerate(real)]
            pair = (numbers, np.array([0.0, *real], np.float32)[numbers])
            for path, values in zip(paths[2 * place :], pair if self._series is None else (), strict=False):
                with written(path) as beside:
                    write_volume(self._cases, case_id, values, beside, case.spacing)
        if self._series is None:
            return tuple(paths)
        if not segments:
            raise CaseError(case_id, "it has no object, but a DICOM SEG has at least one segment. Leave it out.")
        likely = sorted(segments, key=lambda each: -each[0])[: max(1, MOST_VALUES // prod(space) - 1)]
        probs = np.zeros((len(likely) + 1, *space), np.float32)
        probs[0] = 1
        for number, (chance, _, found, own) in enumerate(likely, start=1):
            mask = found.numbers == own
            probs[0][found.box][mask], probs[number][found.box][mask] = 0, max(chance, 1 / 255)
        coded = read_segments(None, [f"{name} (p = {chance:.2f})" for chance, name, _, _ in likely], "segcal objects")
        return tuple(write_dicom_seg(probs, self._cases, case_id, self._series / case_id, self._folder, coded))
