"""Example cases for figures, small enough for a JSON file: one slice, each map a PNG in base64.

A map is ``{"png": text, "low": number, "high": number}``: the value of a pixel is low + (high - low) * byte / 255, so
that a class index or a flag comes back exactly with low = 0 and high = 255.
"""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segcal.cases.base import Case
from segcal.types import IGNORED


def encode_indices(indices: NDArray[np.integer]) -> dict[str, Any]:
    """Return a map of whole numbers; :data:`segcal.types.IGNORED` becomes 255.

    >>> decode_map(encode_indices(np.array([[0, 3], [-1, 1]]))).tolist()
    [[0.0, 3.0], [255.0, 1.0]]
    """
    return _encode(np.where(indices == IGNORED, 255, indices).astype(np.uint8), 0.0, 255.0)


def encode_values(values: NDArray[np.floating], low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """Return a map of numbers ``(height, width)`` or ``(3, height, width)``, in 256 steps.

    Args:
        values: the numbers.
        low: what byte 0 means; the least value if not given. Values below it become it.
        high: what byte 255 means; the largest value if not given.
    """
    low = float(values.min()) if low is None else low
    high = float(values.max()) if high is None else high
    steps = np.zeros(values.shape) if high == low else (values - low) / (high - low)
    return _encode(np.rint(255 * np.clip(steps, 0, 1)).astype(np.uint8), low, high)


def decode_map(encoded: dict[str, Any]) -> NDArray[np.float64]:
    """Return the values of a map, ``(height, width)`` or ``(3, height, width)``."""
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded["png"]))), np.float64)
    values: NDArray[np.float64] = encoded["low"] + (encoded["high"] - encoded["low"]) * pixels / 255
    return np.moveaxis(values, 2, 0) if values.ndim == 3 else values


def slice_of(volume: NDArray[Any], interest: NDArray[Any]) -> tuple[Any, ...]:
    """Return the index of the slice to show: across the shortest axis of space, where `interest` sums to most.

    >>> slice_of(np.zeros((5, 4, 2)), np.ones((5, 4, 2)) * [1, 2])
    (slice(None, None, None), slice(None, None, None), 1)
    """
    everything: list[Any] = [slice(None)] * volume.ndim
    if volume.ndim < 3:
        return tuple(everything)
    axis = int(np.argmin(volume.shape))
    others = tuple(number for number in range(volume.ndim) if number != axis)
    everything[axis] = int(interest.sum(axis=others).argmax())
    return tuple(everything)


def picture_of(case: Case, index: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return a slice of a case's image: a picture as it is, of other images the last channel."""
    if case.image is None:
        return None
    channels = case.image.numpy()[(slice(None), *index)]
    return encode_values(channels if len(channels) == 3 else channels[-1])


def _encode(pixels: NDArray[np.uint8], low: float, high: float) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, 2) if pixels.ndim == 3 else pixels).save(stream, "PNG", optimize=True)
    return {"png": base64.b64encode(stream.getvalue()).decode(), "low": low, "high": high}
