"""``CASE.ome.zarr``: images of OME-NGFF 0.4 (zarr 2) and 0.5 (zarr 3), read and written by windows.

Scores are the full resolution, the first dataset of the first image. The axis ``c`` holds the classes; without it there
is one foreground probability. Axes of space are ``y, x`` or ``z, y, x``, and time has one point. The output has the
metadata of the input and all of its levels. Each level is made of pixels of the one above, since a mean of scores is no
prediction. Voxel sizes are in millimetres where all axes of space have a unit.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from segcal.atomic import naming
from segcal.cases.formats.base import Header, Stored, find_files
from segcal.cases.formats.scene import Scene, sizes
from segcal.cases.formats.zarr_array import ZarrArray, open_array, plain_files
from segcal.cases.labels import LabelMap
from segcal.cases.nifti_file import usable_spacing
from segcal.cases.raster_file import Put, Where
from segcal.cases.safe_io import check_used, used_bytes
from segcal.documents import json_text, read_json, reading
from segcal.errors import InputError, load_extra

VERSIONS = ("0.4", "0.5")
MILLIMETRES = {"nanometer": 1e-6, "micrometer": 1e-3, "millimeter": 1.0, "centimeter": 10.0, "meter": 1e3}


class _Axis(msgspec.Struct):
    name: str
    unit: str | None = None


class _Transformation(msgspec.Struct):
    type: str
    scale: list[float] = []


class _Dataset(msgspec.Struct):
    path: str
    steps: list[_Transformation] = msgspec.field(name="coordinateTransformations", default_factory=list)


class Multiscale(msgspec.Struct):
    """The metadata of an image; its datasets are levels of resolution, the finest first."""

    axes: list[_Axis]
    datasets: list[_Dataset]
    version: str = ""
    steps: list[_Transformation] = msgspec.field(name="coordinateTransformations", default_factory=list)

    def spacing(self) -> tuple[float, ...] | None:
        """Return the voxel size in millimetres along the axes of space; None where one has no unit."""
        size = np.array([MILLIMETRES.get(axis.unit or "", math.nan) for axis in self.axes])
        for each in (*self.datasets[0].steps, *self.steps):
            size = size * (each.scale if each.type == "scale" else 1.0)
        return usable_spacing([float(one) for one, axis in zip(size, self.axes, strict=True) if axis.name in "zyx"])


class _Level(NamedTuple):
    """An array of an image, and the names of its axes."""

    stored: ZarrArray
    axes: str

    @property
    def space(self) -> tuple[int, ...]:
        return self.in_space(self.stored.array.shape)

    def in_space(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(size for name, size in zip(self.axes, sizes, strict=True) if name in "zyx")

    def located(self, where: Where | None) -> tuple[slice, ...]:
        """Return a window of space, or all of it, as an index of the array."""
        whole = self.stored.whole
        if where is None:
            return whole
        space = iter(where)
        return tuple(next(space) if name in "zyx" else each for name, each in zip(self.axes, whole, strict=True))

    def read(self, where: Where | None) -> np.ndarray:
        """Read a window ``(channels, *space)``, after a look at its chunks."""
        index = self.located(where)
        values = self.stored.read(index)
        values = np.moveaxis(values, self.axes.index("c"), 0) if "c" in self.axes else values
        return values.reshape(-1, *self.in_space(sizes(index)))

    def write(self, where: Where, values: np.ndarray) -> None:
        """Write a window ``(channels, *space)``."""
        index = self.located(where)
        values = np.moveaxis(values, 0, self.axes.replace("t", "").index("c")) if "c" in self.axes else values
        self.stored.array[index] = values.reshape(sizes(index))


class OmeZarr(Scene):
    """Images of OME-NGFF."""

    name = "ome-zarr"
    documented = (
        "`CASE.ome.zarr` (or `.zarr`)",
        "OME-NGFF 0.4 and 0.5; the axis `c` holds the classes; all levels are written; by windows; extra `zarr`",
    )
    extensions = (".ome.zarr", ".zarr")
    by_ending = False

    @classmethod
    def claims(cls, folder: Path) -> bool:
        """Recognise images by their metadata."""
        with suppress(InputError):
            first = next(iter(find_files(folder, (".zarr",)).values()), None)
            return first is not None and "multiscales" in _attributes(first)[0]
        return False

    def header(self, case_id: str) -> Header:
        """Look at the metadata."""
        level = _level(self.path(case_id))
        channels = level.stored.array.shape[level.axes.index("c")] if "c" in level.axes else 1
        space = level.space if self.window is None else sizes(self.window)
        return Header((channels, *space), np.dtype(level.stored.array.dtype))

    def read(self, case_id: str) -> Stored:
        """Read the finest level."""
        path = self.path(case_id)
        return Stored(_level(path).read(self.window), spacing=_image(path).spacing())

    def lacking(self, case_id: str) -> str:
        """Name the first chunk (or shard) of the window that has no file."""
        level = _level(self.path(case_id))
        return level.stored.lacking(level.located(self.window))

    def tile(self, case_id: str) -> tuple[int, ...]:
        """Return the size of a chunk or shard."""
        level = _level(self.path(case_id))
        return level.in_space(level.stored.tile)

    @contextmanager
    def canvas(
        self, case_id: str, path: Path, channels: int, dtype: np.dtype[Any], blank: float | None
    ) -> Iterator[Put]:
        """Give what writes windows of a new image; what else is in the group is copied if it has the same classes."""
        source, zarr = self.path(case_id), load_extra("zarr", "zarr")
        alike = self.header(case_id).shape[0] == channels
        levels = {each.path: _level(source, number) for number, each in enumerate(_image(source).datasets)}
        arrays = {str(level.stored.path) for level in levels.values()}

        def passed(folder: str, names: list[str]) -> list[str]:
            inside = {name: Path(folder, name) for name in names}
            return [n for n, p in inside.items() if n == ".zmetadata" or str(p) in arrays or (p.is_dir() and not alike)]

        shutil.copytree(source, path, ignore=passed)
        _describe(path, alike)
        with naming(path), zarr.config.set({"array.write_empty_chunks": True}):
            made = [_array_like(level, path / name, channels, dtype) for name, level in levels.items()]
            first = next(iter(levels.values()))
            yield first._replace(stored=first.stored._replace(array=made[0])).write
            for above, below in pairwise(made):
                _shrink(above, below)


def read_ome_labels(path: Path) -> LabelMap:
    """Read a label map that is an image of whole numbers."""
    level = _level(path)
    check_used(path, used_bytes(level.stored.array.shape, np.dtype(level.stored.array.dtype)))
    values = level.read(None)
    if len(values) > 1 or values.dtype.kind not in "iub":
        raise InputError(f"{path} has {len(values)} channels of {values.dtype}, but one of class indices is needed.")
    return LabelMap(values[0], path, _image(path).spacing())


def _attributes(path: Path) -> tuple[Any, dict[str, object], Path]:
    """Return what a group says of its images, all that it says, and the file that says it."""
    third = path / "zarr.json"
    file = third if third.is_file() else path / ".zattrs"
    content = read_json(file)
    with reading(path):
        return (content["attributes"].get("ome", {}) if file == third else content), content, file


def _image(path: Path) -> Multiscale:
    """Return what an image says, if it can be used."""
    about, _, _ = _attributes(path)
    with reading(path):
        plain_files(path)
        found = msgspec.convert(about["multiscales"][0], Multiscale)
        version, axes = found.version or about.get("version", VERSIONS[0]), "".join(axis.name for axis in found.axes)
        if version not in VERSIONS or axes.strip("tc") not in ("yx", "zyx"):
            raise InputError(
                f"{path} is OME-Zarr {version} with the axes {', '.join(axes)}, but {' or '.join(VERSIONS)} with y, x "
                "and perhaps t, c and z is needed. Write it again."
            )
        parts = [Path(each.path).parts for each in found.datasets]
        if not parts or any(not each or ".." in each or Path(*each).is_absolute() for each in parts):
            raise InputError(f"{path} has no dataset inside of itself, but at least one is needed. Write it again.")
    return found


def _level(path: Path, number: int = 0) -> _Level:
    image = _image(path)
    inner, axes = path / image.datasets[number].path, "".join(axis.name for axis in image.axes)
    stored = open_array(inner, scene=True)
    shape = stored.array.shape
    if len(shape) != len(axes) or ("t" in axes and shape[axes.index("t")] != 1):
        raise InputError(
            f"{inner} has shape {shape} and the axes {', '.join(axes)}, but one size per axis is needed, and one point "
            "in time. Write one image per case."
        )
    return _Level(stored, axes)


def _describe(path: Path, alike: bool) -> None:
    """Bring the metadata of a copied group to what is written: other channels, and levels made by leaving out."""
    about, content, file = _attributes(path)
    content.pop("consolidated_metadata", None)
    if not alike:
        about.pop("omero", None)
    if "type" in about["multiscales"][0]:
        about["multiscales"][0] |= {"type": "nearest", "metadata": {}}
    file.write_text(json_text(content, indent=1), "utf-8")


def _array_like(level: _Level, path: Path, channels: int, dtype: np.dtype[Any]) -> Any:
    """Make an array that is stored like another one."""
    like = level.stored.array
    version = like.metadata.zarr_format
    grids = {"shape": like.shape, "chunks": like.chunks, "shards": like.shards}
    if "c" in level.axes and like.shape[level.axes.index("c")] != channels:
        grids = {
            k: g and tuple(channels if n == "c" else s for n, s in zip(level.axes, g, strict=True))
            for k, g in grids.items()
        }
    named = {"dimension_names": like.metadata.dimension_names} if version == 3 else {}
    keys = {"name": "default" if version == 3 else "v2", "separator": "/"}
    return load_extra("zarr", "zarr").create_array(
        str(path), dtype=dtype, compressors=like.compressors, zarr_format=version, chunk_key_encoding=keys,
        attributes=dict(like.attrs), fill_value=0, **grids, **named,
    )  # fmt: skip


def _shrink(large: Any, small: Any) -> None:
    """Fill a level with every n-th pixel of the one above."""
    pairs = list(zip(large.shape, small.shape, strict=True))
    steps = [max(1, min(round(a / b), (a - 1) // (b - 1) if b > 1 else a)) for a, b in pairs]
    tiles = small.shards or small.chunks
    for corner in product(*(range(0, size, tile) for size, tile in zip(small.shape, tiles, strict=True))):
        ends = [min(low + tile, size) for low, tile, size in zip(corner, tiles, small.shape, strict=True)]
        picked = [slice(low * n, (high - 1) * n + 1, n) for low, high, n in zip(corner, ends, steps, strict=True)]
        small[tuple(map(slice, corner, ends))] = large[tuple(picked)]
