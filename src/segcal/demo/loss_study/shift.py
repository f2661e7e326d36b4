r"""Strongly degraded cases: pictures by the benchmark's corruptions, volumes by what happens to scans.

For a volume x, one of the following, chosen by a digest of the case's name:

- ``noise``: :math:`|x + \sigma (n + i m)|`, n and m standard normal, as in the magnitude of a scan;
- ``blur``: a Gaussian in the plane of the slices;
- ``gain``: a factor times x;
- ``bias``: :math:`x \exp(b f)`, f a smooth random field of standard deviation 1, whose mean changes the gain as well;
- ``coarse``: every second voxel of the plane, each repeated.

Where a volume has no signal in any channel, it stays 0.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from segcal.studies.corruptions import corrupt

Volume = NDArray[np.float32]

STRENGTH = "strong"
NOISE = 0.12
BLUR = 1.5
GAIN = 1.5
BIAS, BIAS_SCALE = 0.35, 12.0


def degrade(image: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """Return a degraded copy of a picture or a volume ``(channels, *space)``; its name decides how."""
    if image.ndim == 3:
        return corrupt(image, name, STRENGTH)
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    change = list(CHANGES.values())[digest % len(CHANGES)]
    inside = (image != 0).any(axis=0)
    return (change(image, np.random.default_rng(digest)) * inside).astype(np.float32)


def add_noise(image: Volume, rng: np.random.Generator) -> Volume:
    """Return the magnitude after complex noise."""
    real, imaginary = NOISE * rng.standard_normal((2, *image.shape), dtype=np.float32)
    return np.hypot(image + real, imaginary)


def blur(image: Volume, _: np.random.Generator) -> Volume:
    """Return the volume blurred in the plane."""
    return gaussian_filter(image, (0, BLUR, BLUR, 0))


def raise_gain(image: Volume, _: np.random.Generator) -> Volume:
    """Return the volume times a factor."""
    return np.float32(GAIN) * image


def add_bias(image: Volume, rng: np.random.Generator) -> Volume:
    """Return the volume under a strong bias field, the same in all channels."""
    field = gaussian_filter(rng.standard_normal(image.shape[1:]), BIAS_SCALE, mode="wrap")
    return image * np.exp(BIAS * field / field.std()).astype(np.float32)


def coarsen(image: Volume, _: np.random.Generator) -> Volume:
    """Return the volume with half the resolution in the plane."""
    height, width = image.shape[1:3]
    return image[:, ::2, ::2].repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]


# The order is part of the definition: a digest points into it.
CHANGES: dict[str, Callable[[Volume, np.random.Generator], Volume]] = {
    "noise": add_noise,
    "blur": blur,
    "gain": raise_gain,
    "bias": add_bias,
    "coarse": coarsen,
}
