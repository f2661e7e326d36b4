"""What stands before the values of a NIfTI file: header and extensions, looked at before a library reads them.

The header says where the values begin (`vox_offset`); until there, extensions follow each other, each with its own
length. A library reads an extension of whatever length it declares, and from a compressed file that can be a thousand
times the file. So the chain of lengths is followed here: values begin within 16 MB, and no extension goes beyond.
"""

import gzip
import math
import struct
from pathlib import Path

from segcal.errors import InputError

MAX_HEAD = 16 << 20
# Header length -> where `vox_offset` stands, and its type: NIfTI-1 and NIfTI-2.
_OFFSETS = {348: (108, "f"), 540: (168, "q")}


def check_head(path: Path) -> None:
    """Refuse a file whose extensions are not what they should be; what is no NIfTI at all is left to the library."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        first = stream.read(4)
        order = next((sign for sign in "<>" if _number(sign + "i", first) in _OFFSETS), None)
        if order is None:
            return
        length = int(_number(order + "i", first))
        place, kind = _OFFSETS[length]
        header = first + stream.read(length - len(first))
        begin = _number(order + kind, header[place:])
        if not math.isfinite(begin) or not 0 <= begin <= MAX_HEAD:
            raise _damaged(path, f"has values that begin at byte {begin:g}")
        flags = stream.read(4)
        position = length + 4
        while flags[:1] not in (b"", b"\0") and begin - position >= 16:
            size = int(_number(order + "i", stream.read(8)))
            if not 8 <= size <= begin - position:
                raise _damaged(path, f"has an extension of {size} bytes")
            stream.read(size - 8)
            position += size


def _number(kind: str, content: bytes) -> float:
    size = struct.calcsize(kind)
    return float(struct.unpack(kind, content[:size])[0]) if len(content) >= size else 0.0


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} {what}, but header and extensions take at most {MAX_HEAD} bytes. Export it again.")
