"""Arrays as numpy pickles them: a type, a shape, and the bytes, which must be as many as the two say."""

import math
from typing import Any

import numpy as np

MAX_AXES = 32


class Shell:
    """An array or a type whose state comes later; memo entries that point to it are replaced then."""

    def __init__(self, what: str, spec: Any = None) -> None:
        self.what, self.spec = what, spec
        self.memo_keys: list[int] = []


def simple_dtype(spec: object) -> np.dtype[Any]:
    """Return the type of plain numbers that a text names."""
    dtype = np.dtype(spec) if isinstance(spec, str) and len(spec) <= 4 else np.dtype(object)
    if dtype.kind not in "fiubc":
        raise ValueError(f"dtype {spec!r} is not a plain number")
    return dtype


def plain_dtype(value: object) -> np.dtype[Any]:
    """Return the type that a pickle built."""
    if isinstance(value, Shell) and value.what == "dtype":
        value = value.spec
    if not isinstance(value, np.dtype):
        raise ValueError("an array without a dtype")
    return value


def plain_array(content: Any, dtype: np.dtype[Any], shape: Any, order: Any) -> np.ndarray:
    """Return an array over bytes that are in the file."""
    if not isinstance(shape, tuple | list) or len(shape) > MAX_AXES or not all(isinstance(n, int) for n in shape):
        raise ValueError("an array without a shape")
    sizes = tuple(shape)
    if not isinstance(content, bytes | bytearray) or min(sizes, default=0) < 0:
        raise ValueError("an array without bytes")
    if math.prod(sizes) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {sizes} and dtype {dtype} with {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(sizes, order="F" if order == "F" else "C")
