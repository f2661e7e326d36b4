"""``CASE.tif``: GeoTIFF or cloud-optimised GeoTIFF (COG), one band per class, read and written by windows."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.base import Header, Stored
from segcal.cases.formats.scene import Scene, sizes
from segcal.cases.geometry import Geometry, raster_geometry
from segcal.cases.raster_file import EXTENSIONS, Put, blank_of, open_raster, raster_like, raster_spacing, raster_values


class GeoTiff(Scene):
    """GeoTIFF files, whose bands are the classes."""

    name = "geotiff"
    documented = (
        "`CASE.tif` (or `.tiff`)",
        "a band per class; also COG; by windows; nodata does not count and stays; extra `geo`",
    )
    extensions = EXTENSIONS

    def header(self, case_id: str) -> Header:
        """Look at the header."""
        with open_raster(self.path(case_id)) as file:
            space = file.shape if self.window is None else sizes(self.window)
            return Header((file.count, *space), np.dtype(file.dtypes[0]))

    def read(self, case_id: str) -> Stored:
        """Read the bands, and where there are data."""
        with open_raster(self.path(case_id)) as file:
            values, valid = raster_values(file, self.window)
            return Stored(values, valid, raster_spacing(file))

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return where the pixels lie."""
        return raster_geometry(self.path(case_id))

    def sources(self, case_id: str) -> list[Path]:
        """Return the file, and those beside it that tell the library where it lies or which pixels have data."""
        if case_id not in self.files:
            return []
        path = self.files[case_id][0]
        beside = [f"{path.name}{end}" for end in (".aux.xml", ".msk")]
        beside += [f"{path.stem}{end}" for end in (".tfw", ".tifw", ".wld", ".RPB", "_RPC.TXT", "_rpc.txt")]
        return [path, *(found for name in beside if (found := path.with_name(name)).is_file())]

    def tile(self, case_id: str) -> tuple[int, ...]:
        """Return the size of a tile or strip."""
        with open_raster(self.path(case_id)) as file:
            return tuple(file.block_shapes[0])

    def blank(self, case_id: str) -> float | None:
        """Return the value of nodata."""
        with open_raster(self.path(case_id)) as file:
            return blank_of(file)

    def canvas(
        self, case_id: str, path: Path, channels: int, dtype: np.dtype[Any], blank: float | None
    ) -> AbstractContextManager[Put]:
        """Give what writes bands of a new file."""
        return raster_like(self.path(case_id), path, channels, dtype, blank)
