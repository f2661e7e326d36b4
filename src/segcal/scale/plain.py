"""Results of single cases as bytes, and back: what they are made of is listed, and nothing else is ever made of a file.

Numbers come back as they were, to the last bit, and arrays in the order in memory that they had, because sums over
them depend on it. Every field has the type that its class declares, and the whole is bounded before it is unpacked;
bytes that are no result of ours are refused.
"""

import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from segcal.cases.check_case import CaseRow, Problem, Seen
from segcal.cases.glance import Agreement, Glance, Thumbnail
from segcal.cases.moves import Shift, Turn
from segcal.cases.watch import Member
from segcal.checks import memory_limit
from segcal.evaluation.apply import AppliedCase
from segcal.evaluation.region_counter import RegionTables, Together
from segcal.evaluation.violations import Measured
from segcal.fitting.sample import Voxels
from segcal.statistics.additive import Confusion, Flips, FreeEnergy, Likelihood, Ranking
from segcal.statistics.boundary import Bands
from segcal.statistics.case import CaseTables
from segcal.statistics.reliability import Curve
from segcal.statistics.surface import Surface
from segcal.statistics.voxel_sample import VoxelSample
from segcal.trust.components import CaseObjects
from segcal.trust.sums import CaseSums, TruthSums

# Everything that a result of one case may hold, besides numbers, texts, arrays and containers of them.
KNOWN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        AppliedCase, Agreement, Bands, CaseObjects, CaseRow, CaseSums, CaseTables, Confusion, Curve, Flips, FreeEnergy,
        Glance, Likelihood, Measured, Member, Problem, Ranking, RegionTables, Seen, Shift, Surface, Thumbnail, Together,
        TruthSums, Turn, Voxels, VoxelSample,
    )
}  # fmt: skip
# The name of what a container stands for; no class has these.
TAG = ""


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
        return _result(msgspec.msgpack.decode(_unpacked(content)))
    except (zlib.error, ArithmeticError, ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
        raise UnknownResultError(str(error)[:200]) from None


def _unpacked(content: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(content, memory_limit())
    if not unpacking.eof or unpacking.unused_data:
        raise UnknownResultError("it is cut off, or larger than the memory of this machine")
    return found


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) is list:
        return [_plain(each) for each in value]
    for kind, (name, change) in _NAMED.items():
        if isinstance(value, kind) and (kind is not tuple or type(value) is tuple):
            return {TAG: name, "of": change(value)}
    name = type(value).__name__
    if KNOWN.get(name) is not type(value):
        raise TypeError(f"{type(value).__qualname__} is no result of a case")
    return {TAG: name, "of": [_plain(getattr(value, field)) for field in _fields(type(value))]}


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


_NAMED: dict[type, tuple[str, Callable[[Any], Any]]] = {
    np.generic: ("number", lambda value: _array(np.asarray(value))),
    torch.Tensor: ("tensor", lambda value: _array(value.detach().cpu().numpy())),
    np.ndarray: ("array", _array),
    Path: ("path", lambda value: str(value.absolute())),  # who reads it may be elsewhere
    dict: ("dict", lambda value: [[_plain(key), _plain(each)] for key, each in value.items()]),
    tuple: ("tuple", lambda value: [_plain(each) for each in value]),
}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "array": _of_array,
    "number": lambda parts: _of_array(parts)[()],
    "tensor": lambda parts: torch.from_numpy(_of_array(parts)),
    "path": Path,
    "dict": lambda pairs: {_result(key): _result(each) for key, each in pairs},
    "tuple": lambda values: tuple(_result(each) for each in values),
}


def _result(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_result(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    name, content = plain[TAG], plain["of"]
    if name in _CONTAINERS:
        return _CONTAINERS[name](content)
    kind = KNOWN[name]
    given = dict(zip(_fields(kind), (_result(each) for each in content), strict=True))
    as_declared = {field: value.item() if isinstance(value, np.generic) else value for field, value in given.items()}
    msgspec.convert(as_declared if is_dataclass(kind) else [*as_declared.values()], kind)  # raises where it is not
    return kind(**given)
