"""Arguments of public functions are checked against their annotations first; a wrong type is one clear message.

The signature is the declaration, so nothing is said twice: ``@typed`` on a function, :func:`check_fields` in a
dataclass. ``Any`` and ``object`` are looked at by whoever uses them. Numbers must be finite, whole numbers fit into 64
bits, and an argument of one name has the same bounds in every function (:data:`BOUNDS`).
"""

import inspect
import math
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from segcal.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

# The least and the most that a number may be, by the name of the argument.
BOUNDS = {
    "workers": (1, 1024),
    "seed": (0, 2**63 - 1),
    "replicates": (1, 1_000_000),
    "folds": (2, 1000),
    "evidence": (0, 1_000_000),
    "trials": (1, 1_000_000),
    "max_steps": (1, 1_000_000_000),
    "patience": (1, 1_000_000_000),
    "memory": (1 << 20, 1 << 50),
    "voxels": (1, 1 << 40),
    "tol": (1e-14, 1.0),
    "bins": (1, 1 << 16),
    "axes": (1, 3),
    "width": (20, 10_000),
}

WORDS: dict[Any, str] = {
    str: "text",
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    Path: "a path",
    os.PathLike: "a path",
    "Fitted": "the result of segcal.fit",
    "Module": "a torch.nn.Module",
}
LEAVE = "Leave it out for the default."
LONGEST = 1000  # of the arguments that a function takes without names, as many are looked at
LONGEST_PATH, LONGEST_NAME = 4095, 255  # bytes, of Linux
PLAIN = (str, bytes, bool, int, float, complex, list, tuple, dict, set, NoneType)
NUMBERS = {bool: (bool, np.bool_), int: (int, np.integer), float: (int, float, np.integer, np.floating)}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Hold the arguments of every call against the annotations of a function.

    >>> @typed
    ... def half(number: float, exactly: bool = False) -> float:
    ...     return number / 2
    >>> half("x")
    Traceback (most recent call last):
    segcal.errors.InputError: number is 'x', but a finite number is needed. See help(half).
    >>> half(3, exactly=1)
    Traceback (most recent call last):
    segcal.errors.InputError: exactly is 1, but True or False is needed. Leave it out for the default.
    """

    @cache
    def declared() -> tuple[Iterable[inspect.Parameter], dict[str, inspect.Parameter]]:
        found = inspect.signature(function, follow_wrapped=False).parameters
        by_name = {name: one for name, one in found.items() if one.kind != one.VAR_KEYWORD}
        places = [one for one in by_name.values() if one.kind != one.KEYWORD_ONLY]
        rest = [one for one in places if one.kind == one.VAR_POSITIONAL]
        return places + rest * LONGEST, by_name

    @wraps(function)
    def held(*args: P.args, **named: P.kwargs) -> R:
        places, by_name = declared()
        for one, value in (*zip(places, args, strict=False), *((by_name.get(name), named[name]) for name in named)):
            if one is not None and one.annotation is not one.empty:
                repair = f"See help({function.__name__})." if one.default is one.empty else LEAVE
                _check_argument(one.name, value, one.annotation, repair)
        return function(*args, **named)

    return held


def check_fields(record: Any) -> None:
    """Hold the fields of a dataclass against their annotations."""
    for field in fields(record):
        _check_argument(field.name, getattr(record, field.name), field.type, LEAVE)


def _check_argument(name: str, value: object, need: Any, repair: str) -> None:
    if not fits(value, need):
        raise InputError(f"{name} is {shown(value)}, but {in_words(need)} is needed. {repair}")
    if isinstance(value, str | os.PathLike) and any(get_origin(one) is os.PathLike for one in get_args(need)):
        whole = os.fspath(value).encode("utf-8", "surrogatepass")
        if len(whole) > LONGEST_PATH or max(map(len, whole.split(b"/"))) > LONGEST_NAME:
            raise InputError(
                f"{name} is {shown(os.fspath(value))}, but a path has at most {LONGEST_PATH} bytes and {LONGEST_NAME} "
                "in each of its names. Name a shorter one."
            )
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        least, most = BOUNDS.get(name, (-math.inf, math.inf))
        if not least <= value <= most:
            raise InputError(
                f"{name} is {shown(value)}, but a number between {least:g} and {most:g} is needed. {repair}"
            )


def fits(value: object, need: Any) -> bool:
    """Whether a value is what an annotation says; of a list or dictionary, whether all of it is.

    >>> fits(["a", 1], Sequence[str]), fits(("a",), Sequence[str]), fits("a", Sequence[str]), fits(None, str | None)
    (False, True, False, True)
    """
    origin, inner = get_origin(need), get_args(need)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str | int) and value in inner
    if origin in _PARTS:
        return _PARTS[origin](value, inner)
    if need in (str, Path):
        return isinstance(value, need) and "\0" not in str(value)
    if need in NUMBERS:
        return _is_number(value, need)
    checkable = isinstance(need, type) and need is not Any
    return not checkable or isinstance(value, need)


def _is_number(value: object, need: Any) -> bool:
    if need is bool or isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return need is bool and isinstance(value, NUMBERS[bool])
    return isinstance(value, NUMBERS[need]) and bool(-(2**63) <= value < 2**63)  # which NaN is not


def _is_sequence(value: object, inner: Any) -> bool:
    sized = hasattr(value, "__len__") and hasattr(value, "__getitem__") and getattr(value, "ndim", 1) > 0
    return sized and not isinstance(value, str | bytes | Mapping) and _all_fit(value, inner)  # type: ignore[arg-type]


def _is_iterable(value: object, inner: Any) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0:
        return False
    return not hasattr(value, "__len__") or _all_fit(value, inner)  # what a generator gives is not known yet


def _is_mapping(value: object, inner: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())


def _all_fit(values: Iterable[object], inner: Any) -> bool:
    return inner[0] in (Any, object) or all(fits(value, inner[0]) for value in values)


_PARTS: dict[Any, Callable[[object, Any], bool]] = {
    os.PathLike: lambda value, inner: isinstance(value, os.PathLike) and "\0" not in os.fspath(value),
    Sequence: _is_sequence,
    list: lambda value, inner: isinstance(value, list | tuple) and _all_fit(value, inner),
    tuple: _is_sequence,
    Collection: _is_sequence,
    Iterable: _is_iterable,
    Mapping: _is_mapping,
    dict: _is_mapping,
    type: lambda value, inner: isinstance(value, type) and issubclass(value, inner),
    Callable: lambda value, inner: callable(value),
}


def in_words(need: Any) -> str:
    """Return what an annotation asks for.

    >>> in_words(Sequence[str] | None), in_words(Literal["a", "b"]), in_words(str | Path)
    ('a list, each entry text,', "'a' or 'b'", 'text or a path')
    """
    origin, inner = get_origin(need), get_args(need)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(in_words(one) for one in inner if one is not NoneType))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Sequence, list, tuple, Collection, Iterable):
        return "a list" if inner[0] in (Any, object) else f"a list, each entry {in_words(inner[0])},"
    if origin in (Mapping, dict):
        return f"a dictionary from {in_words(inner[0])} to {in_words(inner[1])}"
    if origin is Callable:
        return "a function"
    if origin is type:
        return f"a class of {inner[0].__name__}"
    name = getattr(need, "__name__", str(need))
    return WORDS.get(origin or need) or WORDS.get(name) or f"a {name}"


def shown(value: object) -> str:
    """Return a value as a message shows it: itself if it is plain and short, else its type.

    >>> shown(float("nan")), shown(np.zeros(3)), shown(Path)
    ('nan', 'ndarray', 'the class Path')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return reprlib.repr(value) if isinstance(value, PLAIN) else type(value).__name__
