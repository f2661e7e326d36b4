"""Chunks of a zarr array, looked at before a library unpacks them: none may become more than the metadata says.

A library takes what a chunk unpacks to, whatever shape the array has: a megabyte of gzip can become a gigabyte, and one
of zstd thirty. Blosc and the frames of zstd say what they unpack to, and are held to it when they are read (a frame
that does not has blocks, of at most 128 KiB each). Gzip does not, so it is unpacked once, piece by piece, and thrown
away. Of a shard, which is a chunk made of chunks, the index is read and every inner chunk is looked at the same way.

Every chunk costs some thousand bytes and a fraction of a millisecond, whether it is there or not, so their number is
bounded too.
"""

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from segcal.errors import InputError

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


def check_number(path: Path, *steps: tuple[Sequence[int], Sequence[int]]) -> None:
    """Refuse more chunks than can be gone through: of an array in its chunks, and of a shard in its own."""
    number = math.prod(-(-size // max(step, 1)) for pair in steps for size, step in zip(*pair, strict=True))
    if number > MOST_CHUNKS:
        raise InputError(
            f"{path} has {number} chunks, but at most {MOST_CHUNKS} can be read. Write it again with larger chunks."
        )


def check_chunk(path: Path, codecs: list[dict[str, Any]], shape: Sequence[int], itemsize: int) -> None:
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


def inner_shape(codecs: list[dict[str, Any]]) -> list[int] | None:
    """Return the shape of the chunks inside a shard; None where chunks are not sharded."""
    found = [codec["configuration"].get("chunk_shape") for codec in codecs if codec["name"] == "sharding_indexed"]
    if found and not (isinstance(found[0], list) and all(type(size) is int and size > 0 for size in found[0])):
        raise ValueError("a shard without the shape of its chunks")
    return found[0] if found else None


def _parts(
    path: Path, file: BinaryIO, size: int, codecs: list[dict[str, Any]], shape: Sequence[int], itemsize: int
) -> Iterator[tuple[int, int, list[dict[str, Any]], int]]:
    """Yield where each chunk of a file begins, its length, its codecs and the bytes of its values."""
    inside = inner_shape(codecs)
    if inside is None:
        yield 0, size, codecs, math.prod(shape) * itemsize
        return
    sharding = codecs[0]["configuration"]
    inner, index = sharding["codecs"], [codec["name"] for codec in sharding["index_codecs"]]
    if len(codecs) > 1 or index not in _INDEX_CODECS or inner_shape(inner) is not None:
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
