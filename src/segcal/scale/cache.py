"""Results of single cases on disk: by what was done, the case, and a digest of what the result was made from.

**Blocks** are complete or absent. One begins with a line that says what it is, the length of its table and the table. A
row has the task, the case, the key of its inputs, whether it failed, and the length of its bytes. The bytes follow.
Only tables are held in memory. A result is read when it is asked for, so that memory does not grow with the size of the
results. Of a run that is killed, at most what came in the last few seconds is lost.

**Results** are made of what is listed here, and nothing else is ever made of a file. Numbers come back as they were, to
the last bit. Arrays keep their order in memory, because sums over them depend on it. Every field has the type that its
class declares, and the whole is bounded before it is unpacked; bytes that are no result are refused.
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch

from segcal.atomic import write_bytes
from segcal.cases.base import CaseError
from segcal.cases.check import CaseRow, Problem, Seen
from segcal.cases.profile import Agreement, Profile, Shift, Thumbnail, Turn
from segcal.cases.watch import Member
from segcal.checks import check_memory, memory_limit
from segcal.decisions.masks import DecidedCase
from segcal.errors import InputError
from segcal.evaluation.apply import AppliedCase
from segcal.evaluation.audit import Measured
from segcal.evaluation.case_counter import RegionTables, Together
from segcal.fitting.voxels import Voxels
from segcal.statistics.additive import Confusion, Flips, FreeEnergy, Likelihood, Ranking
from segcal.statistics.boundary import Bands
from segcal.statistics.case import CaseTables
from segcal.statistics.raters import RaterTable
from segcal.statistics.reliability import Curve
from segcal.statistics.surface import Surface
from segcal.statistics.voxel_sample import VoxelSample
from segcal.trust.components import CaseObjects
from segcal.trust.sums import CaseSums

HEAD = b"segcal results 1\n"
ENDING = ".results"
# A block is written when it has so many results or bytes, or is so many seconds old.
MOST_RESULTS, MOST_BYTES, MOST_SECONDS = 256, 16 << 20, 5.0
MOST_TABLE = 64 << 20
# Everything that a result of one case may hold, besides numbers, texts, arrays and containers of them.
KNOWN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        AppliedCase, Agreement, Bands, CaseObjects, CaseRow, CaseSums, CaseTables, Confusion, Curve, DecidedCase, Flips,
        FreeEnergy, Profile, Likelihood, Measured, Member, Problem, Ranking, RaterTable, RegionTables, Seen, Shift,
        Surface, Thumbnail, Together, Turn, Voxels, VoxelSample,
    )
}  # fmt: skip
# The name of what a container stands for; no class has these.
TAG = ""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One result in the table of a block."""

    about: str
    case: str
    key: str
    failed: bool
    size: int


class Entry(NamedTuple):
    """Where a result is, and what it was made from."""

    path: Path
    start: int
    line: Line


class CaseCache:
    """The results in one folder; `entries` are those on disk, by what was done and by case, the last one if several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[tuple[str, str], Entry] = {}
        self._waiting: list[tuple[Line, bytes]] = []
        self._since = time.monotonic()
        for path in sorted(folder.glob(f"*{ENDING}")):
            self._enter(path)

    def has(self, about: str, case_id: str, key_of: Callable[[str], str]) -> bool:
        """Whether a case has a result that was made from what it is now, and did not fail."""
        entry = self.entries.get((about, case_id))
        return entry is not None and not entry.line.failed and entry.line.key == key_of(case_id)

    def keep(self, about: str, case_id: str, key: str, outcome: Callable[[], Any]) -> Any:
        """Return what an outcome gives, or raise its error; either is kept."""
        try:
            result = outcome()
        except CaseError as error:
            self._add(about, case_id, key, True, pack(error.reason))
            raise
        self._add(about, case_id, key, False, pack(result))
        return result

    def _add(self, about: str, case_id: str, key: str, failed: bool, content: bytes) -> None:
        self._waiting.append((Line(about, case_id, key, failed, len(content)), content))
        full = len(self._waiting) >= MOST_RESULTS or sum(line.size for line, _ in self._waiting) >= MOST_BYTES
        if full or time.monotonic() - self._since > MOST_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet."""
        self._since = time.monotonic()
        if not self._waiting:
            return
        table = msgspec.msgpack.encode([line for line, _ in self._waiting])
        number = 1 + max((int(path.stem) for path in self.folder.glob(f"*{ENDING}") if path.stem.isdigit()), default=-1)
        path = self.folder / f"{number:06d}{ENDING}"
        write_bytes(path, b"".join([HEAD, len(table).to_bytes(8, "big"), table, *(each for _, each in self._waiting)]))
        self._waiting = []
        self._enter(path)

    def read(self, about: str, case_id: str) -> Any:
        """Return the result of a case; raise what it failed with."""
        path, start, line = self.entries[about, case_id]
        check_memory(path, line.size, memory_limit(), "Run the shard again.")
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(line.size)
        try:
            result = unpack(content)
        except UnknownResultError as error:
            raise _damaged(path, str(error)) from None
        if line.failed:
            raise CaseError(case_id, str(result))
        return result

    def _enter(self, path: Path) -> None:
        if path.is_symlink() or not path.is_file():
            raise _damaged(path, "it is a link, or no file")
        with path.open("rb") as file:
            head, size = file.read(len(HEAD)), file.read(8)
            if head != HEAD or len(size) < 8:
                raise _damaged(path, "it does not begin like one")
            length, total = int.from_bytes(size, "big"), path.stat().st_size
            if length > min(total, MOST_TABLE):
                raise _damaged(path, "its table is cut off, or too large")
            try:
                lines = msgspec.msgpack.decode(file.read(length), type=list[Line])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _damaged(path, str(error)) from None
        start = len(HEAD) + 8 + length
        if start + sum(line.size for line in lines) != total or any(line.size < 0 for line in lines):
            raise _damaged(path, "its results are cut off")
        for line in lines:
            self.entries[line.about, line.case] = Entry(path, start, line)
            start += line.size


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is damaged ({reason}), but results of a shard are needed. Remove the file and run the shard again."
    )


class UnknownResultError(ValueError):
    """Bytes that are not a result of one case."""


def pack(value: Any) -> bytes:
    """Return a result as bytes.

    >>> unpack(pack({"a": (1, None), 2: 0.1}))
    {'a': (1, None), 2: 0.1}
    """
    return zlib.compress(msgspec.msgpack.encode(_plain(value)), 1)


def unpack(content: bytes) -> Any:
    """Return the result that :func:`pack` made bytes of."""
    try:
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(content, memory_limit())
        if not unpacking.eof or unpacking.unused_data:
            raise UnknownResultError("it is cut off, or larger than the memory of this machine")
        return _result(msgspec.msgpack.decode(found))
    except (zlib.error, ArithmeticError, ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
        raise UnknownResultError(str(error)[:200]) from None


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) is list:
        return [_plain(each) for each in value]
    for name, (kind, change, _) in _CONTAINERS.items():
        if isinstance(value, kind) and (kind is not tuple or type(value) is tuple):
            return {TAG: name, "of": change(value)}
    name = type(value).__name__
    if KNOWN.get(name) is not type(value):
        raise TypeError(f"{type(value).__qualname__} is no result of a case")
    return {TAG: name, "of": [_plain(getattr(value, field)) for field in _fields(type(value))]}


def _result(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_result(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    name, content = plain[TAG], plain["of"]
    if name in _CONTAINERS:
        return _CONTAINERS[name][2](content)
    kind = KNOWN[name]
    given = dict(zip(_fields(kind), (_result(each) for each in content), strict=True))
    as_declared = {field: value.item() if isinstance(value, np.generic) else value for field, value in given.items()}
    msgspec.convert(as_declared if is_dataclass(kind) else [*as_declared.values()], kind)  # raises where it is not
    return kind(**given)


def _fields(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def _array(values: np.ndarray) -> list[Any]:
    order: Literal["C", "F"] = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
    return [values.dtype.str, list(values.shape), order, values.tobytes(order)]


def _of_array(parts: list[Any]) -> np.ndarray:
    dtype, shape, order, content = parts
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise UnknownResultError("an array of objects")
    return np.frombuffer(content, kind).copy().reshape(shape, order=order)


# By name: the type, what it becomes, and what is made of that.
_CONTAINERS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "number": (np.generic, lambda value: _array(np.asarray(value)), lambda parts: _of_array(parts)[()]),
    "tensor": (
        torch.Tensor,
        lambda value: _array(value.detach().cpu().numpy()),
        lambda parts: torch.from_numpy(_of_array(parts)),
    ),
    "array": (np.ndarray, _array, _of_array),
    "path": (Path, lambda value: str(value.absolute()), Path),  # who reads it may be elsewhere
    "dict": (
        dict,
        lambda value: [[_plain(key), _plain(each)] for key, each in value.items()],
        lambda pairs: {_result(key): _result(each) for key, each in pairs},
    ),
    "tuple": (tuple, lambda value: [_plain(each) for each in value], lambda plain: tuple(map(_result, plain))),
}
