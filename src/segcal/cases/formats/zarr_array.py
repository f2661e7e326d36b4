"""Arrays of zarr, opened after a look at what they declare; their chunks, looked at before a library unpacks them.

Metadata is read by us before the library sees it. Only well-known codecs and plain numbers are let through, and no
chunk or array may be larger than memory allows. A store holds folders and plain files. A link in it may lead in
circles, or to files of others, which would be copied. The store itself may be a link.

A library takes all that a chunk unpacks to, whatever the shape of the array. A megabyte of gzip can become a gigabyte,
and one of zstd thirty. Blosc and the frames of zstd declare their unpacked size, which is checked when they are read. A
frame without it has blocks of at most 128 KiB each. Gzip does not, so it is unpacked once, piece by piece, and thrown
away. Of a shard, which is a chunk made of chunks, the index is read and every inner chunk is looked at the same way.

Every chunk costs some thousand bytes and a fraction of a millisecond, whether it is there or not, so their number is
bounded too.
"""

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from segcal.cases.safe_io import check_used, used_bytes
from segcal.documents import read_json, reading
from segcal.errors import InputError, load_extra

NUMBERS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
}  # fmt: skip
CODECS = {"bytes", "transpose", "sharding_indexed", "gzip", "zstd", "blosc", "crc32c"}
MOST_CHUNKS = 200_000
# What packing adds to what cannot be packed, and a block of zstd that is not full.
SLACK = 1 << 18
_PIECE = 16 << 20
_INDEX_CODECS = [["bytes"], ["bytes", "crc32c"]]
_ABSENT = 2**64 - 1
# Of a zstd frame: the sizes of the identifier of a dictionary, and of the field that has the size of the content.
_MAGIC, _DICTIONARY, _CONTENT = b"\x28\xb5\x2f\xfd", (0, 1, 2, 4), (0, 2, 4, 8)
_ZSTD_BLOCK = 1 << 17
# Deflate as gzip or as zlib, which the second format of zarr has too.
_ANY = 47
# What the third format says of an array in ``zarr.json``, and of a way of packing its chunks.
Metadata: TypeAlias = dict[str, Any]


class ZarrArray(NamedTuple):
    """An array of the library, its folder, and its metadata as the third format says it."""

    array: Any
    path: Path
    metadata: Metadata

    @property
    def whole(self) -> tuple[slice, ...]:
        """The index of all values."""
        return tuple(slice(0, size) for size in self.array.shape)

    @property
    def tile(self) -> tuple[int, ...]:
        """The size of what is stored in one file."""
        return tuple(self.array.shards or self.array.chunks)

    def read(self, index: Sequence[slice]) -> np.ndarray:
        """Read a block, after a look at its chunks."""
        shape = self.metadata["chunk_grid"]["configuration"]["chunk_shape"]
        with reading(self.path):
            for file in (self.path / key for key in self._keys(index)):
                if file.is_file():
                    _check_chunk(file, self.metadata["codecs"], shape, np.dtype(self.array.dtype).itemsize)
            return np.asarray(self.array[tuple(index)])

    def lacking(self, index: Sequence[slice]) -> str:
        """Name the first chunk (or shard) of a block that has no file and would be read as the fill value, if any."""
        with reading(self.path):
            absent = next((key for key in self._keys(index) if not (self.path / key).is_file()), None)
        return "" if absent is None else f"lacks the chunk {absent} and perhaps others"

    def _keys(self, index: Sequence[slice]) -> Iterator[str]:
        """Return the names of the chunks (or shards) that a block lies in."""
        spans = [range(one.start // step, -(-one.stop // step)) for one, step in zip(index, self.tile, strict=True)]
        return map(self.array.metadata.encode_chunk_key, product(*spans))


def open_array(path: Path, mode: str = "r", scene: bool = False) -> ZarrArray:
    """Open the array in a folder, of zarr's second or third format, if it can be used.

    Of a scene, which is read by windows, only the chunks must fit in memory.
    """
    zarr = load_extra("zarr", "zarr")
    third = (path / "zarr.json").is_file() or not scene
    content = read_json(path / ("zarr.json" if third else ".zarray"))
    with reading(path):
        metadata = content if third else _as_third(content)
        _check_metadata(metadata, path, scene)
        # Chunks of nothing but zeros are written too: a missing one then means that something was lost.
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = zarr.open_array(str(path), mode=mode, zarr_format=3 if third else 2)
    return ZarrArray(array, path, metadata)


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


def _as_third(content: Metadata) -> Metadata:
    """Return the metadata of an array of zarr's second format as the third would say it, as far as it is checked."""
    packed = [each["id"] for each in (content.get("compressor"), *(content.get("filters") or ())) if each is not None]
    return {
        "shape": content["shape"],
        "chunk_grid": {"configuration": {"chunk_shape": content["chunks"]}},
        "data_type": np.dtype(content["dtype"]).name,
        "codecs": [{"name": "gzip" if name == "zlib" else name} for name in packed],
    }


def _check_metadata(metadata: Metadata, path: Path, scene: bool) -> None:
    """Refuse unknown codecs, sizes beyond memory, and more chunks than can be gone through."""
    unknown = sorted(_codecs(metadata.get("codecs"), path) - CODECS)
    if unknown:
        raise InputError(
            f"{path} uses the codec {unknown[0]}, but only {', '.join(sorted(CODECS))} are read. "
            "Write it with one of them."
        )
    shape, grid, dtype = (metadata.get(name) for name in ("shape", "chunk_grid", "data_type"))
    chunk = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    if not isinstance(dtype, str) or dtype not in NUMBERS:
        raise InputError(f"{path} has dtype {dtype}, but numbers are needed. Save one number per voxel and class.")
    for sizes in (shape, chunk):
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise InputError(f"{path} has no valid shape and chunk shape, but both are needed. The file is damaged.")
        check_used(path, 0 if scene and sizes is shape else used_bytes(sizes, np.dtype(dtype)))
    inside = _inner_shape(metadata["codecs"])
    steps: list[Any] = [(shape, chunk), *([] if inside is None else [(chunk, inside)])]
    number = math.prod(-(-size // max(step, 1)) for pair in steps for size, step in zip(*pair, strict=True))
    if number > MOST_CHUNKS:
        raise InputError(
            f"{path} has {number} chunks, but at most {MOST_CHUNKS} can be read. Write it again with larger chunks."
        )


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


def _check_chunk(path: Path, codecs: list[Metadata], shape: Sequence[int], itemsize: int) -> None:
    """Refuse a chunk or shard that unpacks to more than its shape says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start, length, own, values in _parts(path, file, size, codecs, shape, itemsize):
            names = [codec["name"] for codec in own if codec["name"] in _SIZES]
            most = values + SLACK
            file.seek(start)
            found = length if length > most or not names else _SIZES[names[0]](file.read(length), most)
            if found > most or len(names) > 1:
                raise InputError(
                    f"{path} unpacks to more than the {values} bytes of a chunk, or is packed twice, but neither can "
                    "be. It is damaged: write it again."
                )


def _inner_shape(codecs: list[Metadata]) -> list[int] | None:
    """Return the shape of the chunks inside a shard; None where chunks are not sharded."""
    found = [codec["configuration"].get("chunk_shape") for codec in codecs if codec["name"] == "sharding_indexed"]
    if found and not (isinstance(found[0], list) and all(type(size) is int and size > 0 for size in found[0])):
        raise ValueError("a shard without the shape of its chunks")
    return found[0] if found else None


def _parts(
    path: Path, file: BinaryIO, size: int, codecs: list[Metadata], shape: Sequence[int], itemsize: int
) -> Iterator[tuple[int, int, list[Metadata], int]]:
    """Yield where each chunk of a file begins, its length, its codecs and the bytes of its values."""
    inside = _inner_shape(codecs)
    if inside is None:
        yield 0, size, codecs, math.prod(shape) * itemsize
        return
    sharding = codecs[0]["configuration"]
    inner, index = sharding["codecs"], [codec["name"] for codec in sharding["index_codecs"]]
    if len(codecs) > 1 or index not in _INDEX_CODECS or _inner_shape(inner) is not None:
        raise InputError(
            f"{path} is sharded in an unusual way, but plain chunks in a shard are needed. Write it again."
        )
    entries = 16 * math.prod(-(-whole // part) for whole, part in zip(shape, inside, strict=True))
    file.seek(0 if sharding.get("index_location") == "start" else max(size - entries - 4 * (len(index) - 1), 0))
    table = file.read(entries)
    for place in range(0, len(table), 16):
        start, length = (int.from_bytes(table[at : at + 8], "little") for at in (place, place + 8))
        if start != _ABSENT:
            yield min(start, size), length, inner, math.prod(inside) * itemsize


def _gzip_size(content: bytes, most: int) -> int:
    """Unpack and throw away, until it is more than `most`; several members may follow each other."""
    total, stream = 0, zlib.decompressobj(_ANY)
    while content and total <= most:
        total += len(stream.decompress(content, _PIECE))
        content = stream.unconsumed_tail or stream.unused_data
        stream = zlib.decompressobj(_ANY) if stream.eof else stream
    return total


def _blosc_size(content: bytes, most: int) -> int:
    return int.from_bytes(content[4:8], "little")


def _zstd_size(content: bytes, most: int) -> int:
    """Add up frames: what each says, or what its blocks can become; several frames may follow each other."""
    total = place = 0
    while place < len(content) and total <= most:
        if content[place : place + 4] != _MAGIC:  # a frame that is skipped, or nothing that can be unpacked
            place += 8 + int.from_bytes(content[place + 4 : place + 8], "little")
            continue
        flags = int.from_bytes(content[place + 4 : place + 5], "little")
        single, size = flags >> 5 & 1, _CONTENT[flags >> 6] or flags >> 5 & 1
        place += 6 - single + _DICTIONARY[flags & 3]
        said = int.from_bytes(content[place : place + size], "little") + (256 if size == 2 else 0)
        place, blocks, last = place + size, 0, False
        while not last and place < len(content):
            block = int.from_bytes(content[place : place + 3], "little")
            last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            blocks += _ZSTD_BLOCK if kind == 2 else length
            place += 3 + (1 if kind == 1 else length)
        place += 4 if flags & 4 else 0
        total += said if size else blocks
    return total


_SIZES: dict[str, Callable[[bytes, int], int]] = {"gzip": _gzip_size, "zstd": _zstd_size, "blosc": _blosc_size}
