"""Random fields and smoothing, the raw material of every scene: numpy alone."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.floating[Any]]


@lru_cache(maxsize=32)
def _frequency(shape: tuple[int, ...], stretch: tuple[float, ...]) -> Field:
    """Return the radial frequency, in cycles a pixel, of the half spectrum of a real array."""
    axes = [np.fft.fftfreq(size) for size in shape[:-1]] + [np.fft.rfftfreq(shape[-1])]
    grid = np.meshgrid(*(axis * factor for axis, factor in zip(axes, stretch, strict=True)), indexing="ij")
    return np.sqrt(sum(axis**2 for axis in grid)).astype(np.float32)


def _filtered(rng: np.random.Generator, shape: tuple[int, ...], gain: Field) -> Field:
    spectrum = np.fft.rfftn(rng.standard_normal(shape, dtype=np.float32)) * gain
    field = np.fft.irfftn(spectrum, s=shape, axes=tuple(range(len(shape)))).astype(np.float32)
    return (field - field.mean()) / (field.std() + 1e-6)


def blobs(
    rng: np.random.Generator, shape: tuple[int, ...], size: float, stretch: Sequence[float] | None = None
) -> Field:
    """Return noise of mean 0 and standard deviation 1 whose blobs are `size` pixels wide.

    Args:
        rng: the generator.
        shape: of the field.
        size: standard deviation of the Gaussian that smooths white noise, in pixels.
        stretch: factor on `size` along each axis; thick slices need less smoothing across them.
    """
    radius = _frequency(shape, tuple(stretch or (1.0,) * len(shape)))
    return _filtered(rng, shape, np.exp(-2 * (np.pi * size * radius) ** 2))


def clouds(rng: np.random.Generator, shape: tuple[int, ...], exponent: float = 1.5) -> Field:
    """Return noise of mean 0 and standard deviation 1 with structure at all sizes (a power law of the frequency)."""
    radius = _frequency(shape, (1.0,) * len(shape))
    floor = 1.0 / max(shape)
    return _filtered(rng, shape, np.maximum(radius, floor) ** -exponent)


def smooth(field: Field, sigma: float, axes: Sequence[int]) -> Field:
    """Return the field smoothed by a Gaussian along `axes`; the border is repeated."""
    reach = max(1, int(3 * sigma + 0.5))
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in axes:
        padding = [(0, 0)] * field.ndim
        padding[axis] = (reach, reach)
        padded = np.moveaxis(np.pad(field, padding, mode="edge"), axis, 0)
        length = field.shape[axis]
        total = sum(tap * padded[start : start + length] for start, tap in enumerate(taps))
        field = np.moveaxis(np.asarray(total, np.float32), 0, axis)
    return np.ascontiguousarray(field)


def displaced(array: NDArray, shifts: Sequence[Field]) -> NDArray:
    """Return `array` read at positions moved by `shifts` (one field an axis), to the nearest pixel."""
    places = np.meshgrid(*(np.arange(size) for size in array.shape), indexing="ij")
    index = tuple(
        np.clip(np.rint(place + shift), 0, size - 1).astype(np.int64)
        for place, shift, size in zip(places, shifts, array.shape, strict=True)
    )
    return array[index]
