"""Damage to files, drawn from a seed: bytes changed or cut off, headers that lie, values that no one expects, payloads.

A payload is code that leaves a mark if it is ever executed: in pickles, in arrays of objects, in texts.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign.judge import SENTINEL
from benchmarks.campaign.watch import TOKEN

CODE = f"__import__('os').system('touch {SENTINEL}') or '{TOKEN}'"
DEEP = "[" * 3000 + "]" * 3000
# What takes the place of a value in a document.
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**400, -0.0, 1e308, 5e-324, float("nan"), float("inf"), "", "\x00",
    "\x1b[31m\u2028", "a" * 5000, "../../elsewhere/secret.txt", "/etc/passwd", "file:///etc/passwd",
    "http://planted.invalid/x", "\ud800", CODE, "{0.__class__}", "%s%n", [], {}, [[]], [None] * 3, {"path": "/"},
    {"": 1}, [1, "a", None], "nan", "1e999", "=cmd|' /C calc'!A0", "-o", "--overwrite",
)  # fmt: skip


# What a header may claim.
SHAPES = (
    "(3, 4, 5)", "(3, 10**9)", "(3, 0, 10)", "()", "(3,)", "(1, 4, 5)", "(2, 4, 5)", "(3, -4, 5)", "(3, 9999, 1000000)",
    "(3, 99999999999999999999999)", CODE, "(3, 4, 5) * 1000", "None", "(True, 4, 5)", "(3, 4.5)", "(3,) + (1,) * 70",
    "(3, 1, 1, 1, 1, 1, 1, 20)",
)  # fmt: skip


class Payload:
    """Executes code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (CODE,)


class Program(Payload):
    """Starts a program when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {SENTINEL} # {TOKEN}",)


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one way that suits what it is, or in one that suits any; return the way."""
    if path.is_symlink():  # of an earlier damage: what it leads to is not ours to write to
        path.unlink()
        path.write_bytes(b"")
    ways = [*ANY, *(way for ending, own in BY_ENDING.items() if path.name.endswith(ending) for way in own * 3)]
    way = rng.choice(ways)
    with contextlib.suppress(
        ValueError, KeyError, IndexError, UnicodeError, struct.error, zipfile.BadZipFile, EOFError
    ):
        way(path, rng)
        return way.__name__
    path.write_bytes(b"")
    return "emptied"


def flipped(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    near = len(content) if rng.random() < 0.5 else min(400, len(content))  # headers decide most
    for _ in range(rng.choice((1, 1, 3, 30))):
        content[rng.randrange(near)] = rng.randrange(256)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def longer(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice((1, 100, 5000))))


def noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 20, 3000))))


def replaced(path: Path, rng: random.Random) -> None:
    """Put something in the place of the file that is no file, or not its own."""
    path.unlink()
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(path)
    elif kind == 3:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/stdin", "/etc/passwd", "nowhere", "/proc/self/mem")))
    else:
        path.write_bytes(pickle.dumps(Payload()))


def _unpacked(path: Path) -> bytes:
    """Return what is compressed; as it is, where it was damaged before."""
    content = path.read_bytes()
    with contextlib.suppress(OSError, EOFError, zlib.error):
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    return content or b"\0"


def packed(path: Path, rng: random.Random) -> None:
    """Change bytes inside of what is compressed, or pack a great deal of nothing."""
    content = _unpacked(path)
    if rng.random() < 0.2:
        path.write_bytes(gzip.compress(content + bytes(1 << 27), 1))
        return
    inside = bytearray(content)
    for _ in range(rng.choice((1, 2, 8))):
        inside[rng.randrange(min(352, len(inside)))] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
    path.write_bytes(gzip.compress(bytes(inside)))


def nifti_field(path: Path, rng: random.Random) -> None:
    """Put an extreme number into a field of a NIfTI header."""
    content = bytearray(_unpacked(path).ljust(352, b"\0"))
    form, place = rng.choice((("<h", 40 + 2 * rng.randrange(8)), ("<h", rng.choice((70, 72, 252, 254))), ("<f", 76 + 4 * rng.randrange(8)), ("<f", rng.choice((108, 112, 116))), ("<f", 256 + 4 * rng.randrange(18))))  # fmt: skip  # noqa: E501
    numbers = (
        (-1, 0, 1, 2, 16, 64, 2048, 32767) if form == "<h" else (0, -1, 1e30, 3e38, 1e-40, float("nan"), float("inf"))
    )
    struct.pack_into(form, content, place, rng.choice(numbers))
    path.write_bytes(gzip.compress(bytes(content)) if path.suffix == ".gz" else bytes(content))


def npy_header(path: Path, rng: random.Random) -> None:
    path.write_bytes(_with_header(path.read_bytes(), rng))


def npz_inside(path: Path, rng: random.Random) -> None:
    """Change a member of an archive: its header, its name, or how often it is there."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    with contextlib.suppress(UserWarning), zipfile.ZipFile(path, "w", rng.choice((0, 8))) as archive:
        way = rng.randrange(5)
        for each, content in members.items():
            archive.writestr(each, _with_header(content, rng) if each == name and way == 0 else content)
        if way == 1:
            archive.writestr(rng.choice(("../../elsewhere/x.npy", "/x.npy", "a\x1b.npy", "x" * 300)), members[name])
        elif way == 2:
            archive.writestr("zeros.npy", _header("(3, 60000000)", "<f4") + bytes(1 << 27))
        elif way == 3:
            archive.writestr("object.npy", _objects())


def objects(path: Path, rng: random.Random) -> None:
    """Write an array of objects, which only a pickle can bring back."""
    if path.suffix == ".npz":
        np.savez(path, np.array([Payload(), Program()], object))
    else:
        path.write_bytes(_objects())


def pickled(path: Path, rng: random.Random) -> None:
    """Write a pickle that executes, that is huge, or that is deep."""
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    contents = (
        pickle.dumps(Payload()), pickle.dumps({"spacing": Program()}, 0), pickle.dumps(deep),
        b"\x80\x04cos\nsystem\n(S'touch executed'\ntR.", b"cbuiltins\neval\n(V" + CODE.encode() + b"\ntR.",
        b"\x80\x04" + b"]" * 5000 + b".", b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".", b"(" * 5000 + b"t.",
        pickle.dumps({"shape_before_cropping": [2**62, 2**62], "bbox_used_for_cropping": [[0, 2**62]] * 2}),
        pickle.dumps({"shape_before_cropping": np.zeros(3), "bbox_used_for_cropping": "abc", "spacing": [np.nan] * 3}),
    )  # fmt: skip
    path.write_bytes(rng.choice(contents))


def safetensors_header(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    known = json.loads(content[8 : 8 + length])
    entry = known[next(name for name in known if name != "__metadata__")]
    field = rng.choice(("dtype", "shape", "data_offsets"))
    own = {"dtype": ("F64", "I8", "BF16", "F8_E4M3", "X", 3), "shape": ([2**40, 2**40], [-1, 3], [], [3], "a"), "data_offsets": ([0, 2**60], [-1, 4], [8, 0], [0, 4])}  # fmt: skip  # noqa: E501
    entry[field] = rng.choice(own[field])
    header = json.dumps(known).encode()
    size = rng.choice((len(header), len(header), len(header), 2**63, 10**9, 0))
    path.write_bytes(struct.pack("<Q", size) + header + content[8 + length :])


def document(path: Path, rng: random.Random) -> None:
    """Put a value that no one expects somewhere into a JSON document."""
    content = json.loads(path.read_text("utf-8"))
    for _ in range(rng.choice((1, 1, 2))):
        content = _edited(content, rng)
    path.write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))


def text(path: Path, rng: random.Random) -> None:
    """Change a text: a number, a word, a line, or its encoding."""
    content = path.read_text("utf-8")
    value = rng.choice(VALUES)
    words = list(re.finditer(r'-?\d+\.?\d*|"[^"\n]*"|\w+', content))
    found = rng.choice(words)
    put = json.dumps(value) if rng.random() < 0.7 else str(value)
    lines = content.splitlines(keepends=True)
    options: tuple[Callable[[], str], ...] = (
        lambda: content[: found.start()] + put + content[found.end() :],
        lambda: "".join(rng.sample(lines, len(lines))),
        lambda: content + rng.choice(lines) * 3,
        lambda: f"a = {DEEP}\n" + content,
        lambda: content.replace("\n", "\r\n\x00"),
    )
    path.write_bytes(
        options[min(rng.randrange(8), 7) % 5 if rng.random() < 0.5 else 0]().encode("utf-8", "surrogatepass")
    )


def picture(path: Path, rng: random.Random) -> None:
    """Write a picture of another kind or of a size that its header only claims."""
    from PIL import Image

    kind = rng.randrange(4)
    if kind == 0:
        content = bytearray(path.read_bytes())
        if content[:4] == b"\x89PNG":
            struct.pack_into(">II", content, 16, 100_000, 100_000)
        path.write_bytes(content)
        return
    mode = rng.choice(("1", "L", "P", "RGB", "RGBA", "I;16", "F", "CMYK"))
    ending = "TIFF" if path.suffix == ".tif" else "JPEG" if path.suffix == ".jpg" else "PNG"
    with contextlib.suppress(OSError):
        Image.new(mode, (rng.choice((1, 5, 70)), rng.choice((1, 4, 60)))).save(path, ending)


def _objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Payload(), Program()], object), allow_pickle=True)
    return stream.getvalue()


def _header(shape: str, descr: str, order: str = "False") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}}}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _with_header(content: bytes, rng: random.Random) -> bytes:
    shape = rng.choice(SHAPES)
    descr = rng.choice(
        ("<f4", "<f4", ">f8", "<f2", "<c8", "|O", "<U5", "|b1", "<M8[s]", "|V4", "<i8", "|u1", "f" * 2000, "<f16")
    )
    return _header(shape, descr, rng.choice(("False", "True", "3"))) + content[80:]


def _edited(node: Any, rng: random.Random) -> Any:
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice(list(node))
        if rng.random() < 0.1:
            return {name: value for name, value in node.items() if name != key}
        return node | {key: _edited(node[key], rng)}
    if isinstance(node, list) and node and rng.random() < 0.9:
        index = rng.randrange(len(node))
        return [*node[:index], _edited(node[index], rng), *node[index + 1 :]]
    if isinstance(node, str) and rng.random() < 0.3:
        with contextlib.suppress(ValueError):  # JSON inside of JSON: what a part keeps of its options
            return json.dumps(_edited(json.loads(node), rng))
    return rng.choice(VALUES)


ANY = (flipped, cut, longer, noise, replaced)
BY_ENDING: dict[str, tuple[Callable[[Path, random.Random], None], ...]] = {
    ".npy": (npy_header, npy_header, objects),
    ".npz": (npz_inside, npz_inside, objects),
    ".nii.gz": (packed, nifti_field, nifti_field),
    ".nii": (nifti_field, nifti_field),
    ".pkl": (pickled, pickled),
    ".safetensors": (safetensors_header,),
    ".json": (document, document, text),
    ".toml": (text, text),
    ".csv": (text, text),
    ".png": (picture,),
    ".jpg": (picture,),
    ".tif": (picture,),
}
