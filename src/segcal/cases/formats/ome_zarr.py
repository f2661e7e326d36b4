"""``CASE.ome.zarr``: images of OME-NGFF 0.4 (zarr 2) and 0.5 (zarr 3), read and written by windows.

Scores are the full resolution, the first dataset of the first multiscale image. The axis ``c`` holds the classes; an
image without it has one foreground probability. Axes of space are ``y, x`` or ``z, y, x``, and a time axis has length
one. What is written has the metadata of the input, with all of its levels: each is made of pixels of the one above, since
a mean of scores is nobody's prediction. Voxel sizes are in millimetres where all axes have a unit.
"""

import json
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
from segcal.cases.formats.scene import Scene, sizes, whole
from segcal.cases.formats.zarr import absent_chunk, check_metadata, chunk_keys, plain_files
from segcal.cases.formats.zarr_chunks import check_chunk
from segcal.cases.labels import LabelMap
from segcal.cases.nifti_file import usable_spacing
from segcal.cases.raster_file import Put, Where
from segcal.documents import json_text, read_json, reading
from segcal.errors import InputError, load_extra

VERSIONS = ("0.4", "0.5")
# What is no chunk, in both formats of zarr.
METADATA = ("zarr.json", ".zattrs", ".zgroup", ".zarray", ".zmetadata")
MILLIMETRES = {
    "angstrom": 1e-7,
    "nanometer": 1e-6,
    "micrometer": 1e-3,
    "millimeter": 1.0,
    "centimeter": 10,
    "meter": 1e3,
}


class _Axis(msgspec.Struct):
    name: str
    unit: str | None = None


class _Transformation(msgspec.Struct):
    type: str
    scale: list[float] = []


class _Dataset(msgspec.Struct):
    path: str
    transformations: list[_Transformation] = msgspec.field(name="coordinateTransformations", default_factory=list)


class Multiscale(msgspec.Struct):
    """What an image says about itself; its datasets are levels of resolution, the finest first."""

    axes: list[_Axis]
    datasets: list[_Dataset]
    version: str = ""
    transformations: list[_Transformation] = msgspec.field(name="coordinateTransformations", default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the axes."""
        return [axis.name for axis in self.axes]

    def spacing(self) -> tuple[float, ...] | None:
        """Return the voxel size in millimetres along the axes of space; None where an axis has no unit."""
        size = np.ones(len(self.axes))
        for each in (*self.datasets[0].transformations, *self.transformations):
            size *= each.scale if each.type == "scale" else 1.0
        units = [MILLIMETRES.get(axis.unit or "", math.nan) for axis in self.axes]
        inside = [number for number, name in enumerate(self.names) if name in "zyx"]
        return usable_spacing([float(size[number] * units[number]) for number in inside])


class _Level(NamedTuple):
    """An array of an image, with what its metadata says of chunks, as the third format says it."""

    array: Any
    path: Path
    axes: list[str]
    metadata: dict[str, Any]

    def index(self, where: Where) -> tuple[slice, ...]:
        """Return a window of space as an index of the array."""
        space = iter(where)
        return tuple(
            next(space) if name in "zyx" else slice(0, size)
            for name, size in zip(self.axes, self.array.shape, strict=True)
        )

    def to_channels(self, values: np.ndarray) -> np.ndarray:
        """Return ``(channels, *space)`` of what is stored."""
        kept = [name for name in self.axes if name != "t"]
        values = values.reshape([size for name, size in zip(self.axes, values.shape, strict=True) if name != "t"])
        return np.moveaxis(values, kept.index("c"), 0) if "c" in kept else values[None]

    def write(self, where: Where, values: np.ndarray) -> None:
        """Write a window ``(channels, *space)``."""
        kept = [name for name in self.axes if name != "t"]
        values = np.moveaxis(values, 0, kept.index("c")) if "c" in kept else values[0]
        index = self.index(where)
        self.array[index] = values.reshape(sizes(index))


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
            return first is not None and "multiscales" in _attributes(first)
        return False

    def header(self, case_id: str) -> Header:
        """Look at the metadata."""
        level = self._open(case_id)
        channels = level.array.shape[level.axes.index("c")] if "c" in level.axes else 1
        return Header((channels, *sizes(self._seen(level))), np.dtype(level.array.dtype))

    def read(self, case_id: str) -> Stored:
        """Read the finest level."""
        level = self._open(case_id)
        values = _values(level, self._seen(level))
        return Stored(level.to_channels(values), spacing=_multiscale(self.path(case_id)).spacing())

    def lacking(self, case_id: str) -> str:
        """Name the first chunk (or shard) of the window that has no file."""
        level = self._open(case_id)
        with reading(level.path):
            return absent_chunk(chunk_keys(level.array, level.index(self._seen(level))), level.path)

    def tile(self, case_id: str) -> tuple[int, ...]:
        """Return the size of a chunk or shard."""
        level = self._open(case_id)
        steps = zip(level.axes, level.array.shards or level.array.chunks, strict=True)
        return tuple(step for name, step in steps if name in "zyx")

    @contextmanager
    def canvas(
        self, case_id: str, path: Path, channels: int, dtype: np.dtype[Any], blank: float | None
    ) -> Iterator[Put]:
        """Give what writes windows of a new image; other parts of the group are copied if it has the same classes."""
        source = self.path(case_id)
        levels = [each.path for each in _multiscale(source).datasets]
        alike = self.part(whole(())).header(case_id).shape[0] == channels
        inside = {str(source / level) for level in levels}
        own = {*METADATA, *(Path(level).parts[0] for level in levels)}

        def passed(folder: str, names: list[str]) -> list[str]:
            kept = METADATA if folder in inside else names if alike else own
            return [name for name in names if name not in kept]

        shutil.copytree(source, path, ignore=passed)
        _describe(path, levels, channels, dtype, alike)
        with naming(path):
            made = [_open_level(path, level, "r+") for level in levels]
            yield made[0].write
            for above, below in pairwise(made):
                _shrink(above.array, below.array)

    def _open(self, case_id: str) -> _Level:
        path = self.path(case_id)
        return _open_level(path, _multiscale(path).datasets[0].path)

    def _seen(self, level: _Level) -> Where:
        space = [size for name, size in zip(level.axes, level.array.shape, strict=True) if name in "zyx"]
        return whole(space) if self.window is None else self.window


def read_ome_labels(path: Path) -> LabelMap:
    """Read a label map that is an image of whole numbers, such as the labels of an image in OME-NGFF."""
    scene = _multiscale(path)
    level = _open_level(path, scene.datasets[0].path, scene=False)
    values = level.to_channels(
        _values(level, whole([s for n, s in zip(level.axes, level.array.shape, strict=True) if n in "zyx"]))
    )
    if len(values) > 1 or values.dtype.kind not in "iub":
        raise InputError(
            f"{path} has {len(values)} channels of {values.dtype}, but one of class indices is needed. Name the folder "
            "of the label maps."
        )
    return LabelMap(values[0], path, scene.spacing())


def _attributes(path: Path) -> dict[str, Any]:
    third = (path / "zarr.json").is_file()
    content = read_json(path / ("zarr.json" if third else ".zattrs"))
    found = content.get("attributes", {}).get("ome", {}) if third else content
    return found if isinstance(found, dict) else {}


def _multiscale(path: Path) -> Multiscale:
    """Return what an image says, if it can be used."""
    with reading(path):
        plain_files(path)
    content = _attributes(path)
    with reading(path):
        found = msgspec.convert(content["multiscales"][0], Multiscale)
        version = found.version or content.get("version", VERSIONS[0])
        names = found.names
        if (
            version not in VERSIONS
            or not found.datasets
            or "".join(names).strip("tc") not in ("yx", "zyx", "yxc", "zyxc")
        ):
            raise InputError(
                f"{path} is OME-Zarr {version} with the axes {', '.join(names)}, but {' or '.join(VERSIONS)} with y, x "
                "and perhaps t, c and z is needed. Write it again."
            )
        if any(
            Path(each.path).is_absolute() or ".." in Path(each.path).parts or not each.path for each in found.datasets
        ):
            raise InputError(f"{path} names a dataset outside of itself, but its own are needed. Write it again.")
    return found


def _open_level(path: Path, name: str, mode: str = "r", scene: bool = True) -> _Level:
    inner, zarr = path / name, load_extra("zarr", "zarr")
    third = (inner / "zarr.json").is_file()
    metadata = read_json(inner / ("zarr.json" if third else ".zarray"))
    axes = _multiscale(path).names
    with reading(inner):
        if not third:
            metadata = _as_third(metadata)
        check_metadata(metadata, inner, scene)
        # Chunks of nothing but zeros are written too: a missing one then means that something was lost.
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = zarr.open_array(str(inner), mode=mode, zarr_format=3 if third else 2)
        if array.ndim != len(axes) or ("t" in axes and array.shape[axes.index("t")] != 1):
            raise InputError(
                f"{inner} has shape {array.shape} and the axes {', '.join(axes)}, but one size per axis is needed, and "
                "one point in time. Write one image per case."
            )
    return _Level(array, inner, axes, metadata)


def _as_third(content: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array of zarr's second format as the third would say it, as far as it is checked."""
    packed = [each["id"] for each in (content.get("compressor"), *(content.get("filters") or [])) if each is not None]
    return {
        "shape": content["shape"],
        "chunk_grid": {"configuration": {"chunk_shape": content["chunks"]}},
        "data_type": np.dtype(content["dtype"]).name,
        "codecs": [{"name": "gzip" if name == "zlib" else name} for name in packed],
    }


def _values(level: _Level, where: Where) -> np.ndarray:
    """Read a window as stored, after a look at its chunks."""
    index = level.index(where)
    shape = level.metadata["chunk_grid"]["configuration"]["chunk_shape"]
    with reading(level.path):
        for key in chunk_keys(level.array, index):
            if (level.path / key).is_file():
                check_chunk(level.path / key, level.metadata["codecs"], shape, np.dtype(level.array.dtype).itemsize)
        return np.asarray(level.array[index])


def _describe(path: Path, levels: Sequence[str], channels: int, dtype: np.dtype[Any], alike: bool) -> None:
    """Bring the metadata of a copied group to other channels and another type; levels are made by leaving out."""
    axes = _multiscale(path).names
    third = (path / "zarr.json").is_file()
    root = path / ("zarr.json" if third else ".zattrs")
    content = read_json(root)
    about = content["attributes"]["ome"] if third else content
    if not alike:
        about.pop("omero", None)
    if "type" in about["multiscales"][0]:
        about["multiscales"][0] |= {"type": "nearest", "metadata": {}}
    root.write_text(json_text(content, indent=1))
    for level in levels:
        file = path / level / ("zarr.json" if third else ".zarray")
        array = json.loads(file.read_text("utf-8"))
        array |= {"data_type": dtype.name} if third else {"dtype": dtype.newbyteorder("<").str}
        grids = [array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"] if third else array["chunks"]]
        inner = [each["configuration"] for each in array.get("codecs", ()) if each["name"] == "sharding_indexed"]
        for sizes_there in (*grids, *(each["chunk_shape"] for each in inner)) if "c" in axes and not alike else ():
            sizes_there[axes.index("c")] = channels
        file.write_text(json_text(array, indent=1))


def _shrink(large: Any, small: Any) -> None:
    """Fill a level with every n-th pixel of the one above."""
    pairs = list(zip(large.shape, small.shape, strict=True))
    steps = [max(1, min(round(a / b), (a - 1) // (b - 1) if b > 1 else a)) for a, b in pairs]
    tiles = small.shards or small.chunks
    for corner in product(*(range(0, size, tile) for size, tile in zip(small.shape, tiles, strict=True))):
        ends = [min(low + tile, size) for low, tile, size in zip(corner, tiles, small.shape, strict=True)]
        picked = [slice(low * n, (high - 1) * n + 1, n) for low, high, n in zip(corner, ends, steps, strict=True)]
        small[tuple(map(slice, corner, ends))] = large[tuple(picked)]
