"""Polygons of a map for GIS: every connected part of every structure, with its mean calibrated probability.

GeoJSON (RFC 7946) is in longitude and latitude of WGS 84, so edges of pixels are carried there from the system of the
raster. A part is connected by edges of pixels, background and nodata have none, and `area` is in square metres where
the raster is in a length. A style of QGIS lies beside it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from segcal.cases.base import Case
from segcal.cases.files import FileCases
from segcal.cases.formats.geotiff import GeoTiff
from segcal.cases.qgis_style import polygon_style
from segcal.cases.raster_file import open_raster
from segcal.documents import json_text
from segcal.errors import InputError, load_extra


def write_polygons(probs: np.ndarray, cases: FileCases, case: Case, folder: Path, names: Sequence[str]) -> list[Path]:
    """Write probabilities ``(classes, *space)`` of one case as polygons, with their style, and return the files."""
    member = cases.members[0]
    if not isinstance(member, GeoTiff):
        raise InputError(f"the cases are {member.name} files, but polygons lie on a map. Use GeoTIFF, or another form.")
    with open_raster(member.path(case.id)) as file:
        if file.crs is None:
            raise InputError(
                f"{member.path(case.id)} has no coordinate reference system, but GeoJSON is in longitude and latitude. "
                "Assign one, for example with gdal_edit.py -a_srs."
            )
        there, crs = file.transform, file.crs
    inside = np.ones(probs.shape[1:], bool) if case.mask is None else case.mask.numpy()
    on = probs > 0.5 if cases.regions is not None else probs.argmax(0) == np.arange(len(probs))[:, None, None]
    metres = abs(there.determinant) * crs.linear_units_factor[1] ** 2 if crs.is_projected else None
    features = [
        {"type": "Feature", "properties": {"class": names[number], **about}, "geometry": shape}
        for number in range(cases.regions is None, len(probs))
        for about, shape in _parts(probs[number], on[number] & inside, there, crs, metres)
    ]
    path = folder / f"{case.id}.geojson"
    path.write_text(json_text({"type": "FeatureCollection", "features": features}) + "\n", "utf-8")
    path.with_suffix(".qml").write_text(polygon_style("probability"), "utf-8")
    return [path.with_suffix(".qml"), path]


def _parts(
    probs: np.ndarray, on: np.ndarray, there: Any, crs: Any, metres: float | None
) -> Iterator[tuple[dict[str, Any], Any]]:
    features, warp = (load_extra(f"rasterio.{name}", "geo") for name in ("features", "warp"))
    parts, count = scipy.ndimage.label(on)
    pixels = np.bincount(parts.ravel(), minlength=count + 1)
    means = np.bincount(parts.ravel(), probs.ravel(), count + 1) / np.maximum(pixels, 1)
    for shape, number in features.shapes(parts.astype(np.int32), mask=on, connectivity=4, transform=there):
        size = int(pixels[int(number)])
        about = {"probability": float(means[int(number)]), "pixels": size, "area": metres and size * metres}
        yield about, warp.transform_geom(crs, "EPSG:4326", shape)
