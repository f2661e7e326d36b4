"""Maps in JSON: each a PNG in base64.

A map is ``{"png": text, "low": number, "high": number}``: the value of a pixel is low + (high - low) * byte / 255, so
that a class index or a flag comes back exactly with low = 0 and high = 255. A picture that is only looked at may be
``{"jpeg": text}``.
"""

import base64
import io
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from segcal.types import IGNORED

JPEG_QUALITY = 80


class Encoded(TypedDict, total=False):
    """A map (png, low, high) or a picture to look at (jpeg)."""

    png: str
    jpeg: str
    low: float
    high: float


def encode_indices(indices: NDArray[np.integer]) -> Encoded:
    """Return a map of whole numbers; :data:`segcal.types.IGNORED` becomes 255.

    >>> decode_map(encode_indices(np.array([[0, 3], [-1, 1]]))).tolist()
    [[0.0, 3.0], [255.0, 1.0]]
    """
    return _encode(np.where(indices == IGNORED, 255, indices).astype(np.uint8), 0.0, 255.0)


def encode_values(values: NDArray[np.floating], low: float | None = None, high: float | None = None) -> Encoded:
    """Return a map of numbers ``(height, width)`` or ``(3, height, width)``, in 256 steps.

    `low` and `high` are what the bytes 0 and 255 mean, the least and the largest value if not given.
    """
    low = float(values.min()) if low is None else low
    high = float(values.max()) if high is None else high
    steps = np.zeros(values.shape) if high == low else (values - low) / (high - low)
    return _encode(np.rint(255 * np.clip(steps, 0, 1)).astype(np.uint8), low, high)


def encode_jpeg(pixels: NDArray[np.uint8]) -> Encoded:
    """Return a picture ``(channels, height, width)`` of one or three channels, to look at."""
    return {"jpeg": _text(pixels if len(pixels) == 3 else pixels[0], "JPEG", quality=JPEG_QUALITY)}


def decode_map(encoded: Encoded) -> NDArray[np.float64]:
    """Return the values of a map, ``(height, width)`` or ``(3, height, width)``; of a picture from 0 to 1."""
    text = encoded["jpeg"] if "jpeg" in encoded else encoded["png"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), np.float64)
    low, high = encoded.get("low", 0.0), encoded.get("high", 1.0)
    values: NDArray[np.float64] = low + (high - low) * pixels / 255
    return np.moveaxis(values, 2, 0) if values.ndim == 3 else values


def _encode(pixels: NDArray[np.uint8], low: float, high: float) -> Encoded:
    return {"png": _text(pixels, "PNG", optimize=True), "low": low, "high": high}


def _text(pixels: NDArray[np.uint8], form: str, **options: int) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, 2) if pixels.ndim == 3 else pixels).save(stream, form, **options)
    return base64.b64encode(stream.getvalue()).decode()
