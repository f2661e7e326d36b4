"""``CASE.zarr``: one zarr v3 array per case, or a group of which one array is declared.

The class axis is the one declared; else the axis that the file itself names ``c`` (as OME-Zarr does); else the first.
Metadata is read by us before the library sees it: only well-known codecs and plain numbers are let through, and no
chunk or array may be larger than memory allows. A store holds folders and plain files: a link in it may lead in
circles, or to files of others, which would be copied with it. The store itself may be a link.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from segcal.cases.formats.base import Format, Header, Stored
from segcal.cases.formats.zarr_chunks import check_chunk, check_number, inner_shape
from segcal.cases.safe_io import check_used, choose_key, used_bytes
from segcal.documents import read_json, reading
from segcal.errors import InputError, load_extra

NUMBERS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
}  # fmt: skip
CODECS = {"bytes", "transpose", "sharding_indexed", "gzip", "zstd", "blosc", "crc32c"}


class Zarr(Format):
    """Folders in zarr's third format."""

    name = "zarr"
    documented = (
        "`CASE.zarr`",
        "version 3; an array, or a group with `key`; an axis named `c` holds the classes; logits need all their "
        "chunks; extra `zarr`",
    )
    extensions = (".zarr",)

    def header(self, case_id: str) -> Header:
        """Look at the metadata."""
        array, axis, _ = self._open(case_id)
        return self.seen(array.shape, np.dtype(array.dtype), axis)

    def read(self, case_id: str) -> Stored:
        """Read the array."""
        array, axis, path = self._open(case_id)
        metadata = read_json(path / "zarr.json")
        shape = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        with reading(path):
            for file in plain_files(path):
                if file.name != "zarr.json":
                    check_chunk(file, metadata["codecs"], shape, np.dtype(array.dtype).itemsize)
            return Stored(self.classes_first(np.asarray(array[...]), axis))

    def lacking(self, case_id: str) -> str:
        """Name the first chunk (or shard) that has no file and would be read as the fill value."""
        array, _, path = self._open(case_id)
        with reading(path):
            return absent_chunk(chunk_keys(array, tuple(slice(0, size) for size in array.shape)), path)

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Copy the folder, so that attributes and neighbours stay, and overwrite the values."""
        path = self.path(case_id)
        shutil.copytree(path, folder / path.name)
        array, axis, _ = self._open(case_id, folder / path.name, mode="r+")
        array[...] = np.moveaxis(values, 0, axis)
        return [path.name]

    def _open(self, case_id: str, path: Path | None = None, mode: str = "r") -> tuple[Any, int, Path]:
        path = self.path(case_id) if path is None else path
        zarr = load_extra("zarr", "zarr")
        with reading(path):
            files = plain_files(path)
        inner = self._array_folder(path)
        metadata = read_json(inner / "zarr.json")
        with reading(inner):
            names = check_metadata(metadata, inner)
            # Chunks of nothing but zeros are written too: a missing one then means that something was lost.
            with zarr.config.set({"array.write_empty_chunks": True}):
                array = zarr.open_array(str(inner), mode=mode, zarr_format=3)
        chunks = any(file.is_relative_to(inner) and file.name != "zarr.json" for file in files)
        if array.size and not chunks:
            raise InputError(f"{inner} has no chunk, but values are needed. The file is cut off: export it again.")
        default = names.index("c") if names.count("c") == 1 else 0
        return array, self.class_axis(array.ndim, default), inner

    def _array_folder(self, path: Path) -> Path:
        if read_json(path / "zarr.json").get("node_type") == "array":
            return path
        keys = sorted(child.name for child in path.iterdir() if (child / "zarr.json").is_file())
        return path / choose_key(keys, self.options.key, path)


def check_metadata(metadata: dict[str, Any], path: Path, scene: bool = False) -> list[str]:
    """Refuse unknown codecs and sizes beyond memory; return the names of the axes, if the file has them.

    Of a scene, which is read by windows, only the chunks must fit in memory.
    """
    unknown = sorted(_codecs(metadata.get("codecs"), path) - CODECS)
    if unknown:
        raise InputError(
            f"{path} uses the codec {unknown[0]}, but only {', '.join(sorted(CODECS))} are read. "
            "Write it with one of them."
        )
    shape = metadata.get("shape")
    grid = metadata.get("chunk_grid")
    chunk = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    dtype = _dtype(metadata.get("data_type"), path)
    for sizes in (shape, chunk):
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise InputError(f"{path} has no valid shape and chunk shape, but both are needed. The file is damaged.")
        check_used(path, 0 if scene and sizes is shape else used_bytes(sizes, dtype))
    assert shape is not None
    assert chunk is not None
    inside = inner_shape(metadata["codecs"])
    check_number(path, (shape, chunk), *([] if inside is None else [(chunk, inside)]))
    names = metadata.get("dimension_names")
    return names if isinstance(names, list) else []


def chunk_keys(array: Any, index: Sequence[slice]) -> Iterator[str]:
    """Yield the names of the chunks (or shards) that a part of an array lies in."""
    steps = zip(index, array.shards or array.chunks, strict=True)
    spans = [range(one.start // step, -(-one.stop // step)) for one, step in steps]
    return map(array.metadata.encode_chunk_key, product(*spans))


def absent_chunk(keys: Iterator[str], path: Path) -> str:
    """Say which chunk has no file, if any."""
    absent = next((key for key in keys if not (path / key).is_file()), None)
    return "" if absent is None else f"lacks the chunk {absent} and perhaps others"


def _dtype(name: object, path: Path) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in NUMBERS:
        raise InputError(f"{path} has dtype {name}, but numbers are needed. Save one number per voxel and class.")
    return np.dtype(name)


def plain_files(path: Path) -> list[Path]:
    """Return the files of a store; a link, a pipe or a device in it is refused without being opened."""
    found: list[Path] = []
    folders = [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                    raise InputError(
                        f"{entry.path} is a link, a pipe or a device, but a zarr store holds folders and files. "
                        "Put the file itself in its place."
                    )
                (folders if entry.is_dir() else found).append(Path(entry.path))
    return found


def _codecs(codecs: object, path: Path) -> set[str]:
    if not isinstance(codecs, list) or not all(isinstance(codec, dict) for codec in codecs):
        raise InputError(f"{path} has no list of codecs, but zarr version 3 is needed. Write it with zarr_format=3.")
    names: set[str] = set()
    for codec in codecs:
        names.add(str(codec.get("name")))
        inner = codec.get("configuration")
        if isinstance(inner, dict):
            for key in ("codecs", "index_codecs"):
                if key in inner:
                    names |= _codecs(inner[key], path)
    return names
