r"""The paper's five photometric corruptions at two strengths (Tables 6 and 7): images change, labels stay.

For an image x with values in [0, 1]:

- ``noise``: :math:`x + \sigma n`, n standard normal for every pixel and channel;
- ``blur``: a separable Gaussian of k taps, normalised to sum 1; the border is mirrored without repeating its edge;
- ``brightness``: a factor times x;
- ``jpeg``: written and read at a quality, with the encoder's usual chroma subsampling;
- ``fog``: :math:`(1 - \alpha) x + \alpha`, white and uniform.

The result is clipped to [0, 1] and rounded to 8 bits once. Which corruption an image gets follows from its name: the
SHA-256 digest of ``"seed:name"``, as a number, modulo 5, in the order above. The digest also seeds the noise. The
strength is no part of it, so the two strengths of an image are of one kind.
"""

import hashlib
import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import correlate1d

from segcal.checks import check_choice
from segcal.errors import InputError

Pixels = NDArray[np.float32]
Precise = NDArray[np.float64]

STRENGTHS = ("mild", "strong")
# Table 6 of the paper.
SETTINGS: dict[str, dict[str, float]] = {
    "noise": {"mild": 0.03, "strong": 0.10},
    "blur": {"mild": 1.0, "strong": 3.0},
    "brightness": {"mild": 1.2, "strong": 1.8},
    "jpeg": {"mild": 60, "strong": 10},
    "fog": {"mild": 0.1, "strong": 0.5},
}
BLUR_TAPS = {1.0: 5, 3.0: 13}


def blur(image: Precise, sigma: float) -> Precise:
    """Return the image blurred along both axes."""
    kernel = gaussian_kernel(BLUR_TAPS[sigma], sigma)
    for axis in (1, 2):
        image = correlate1d(image, kernel, axis=axis, mode="mirror")
    return image


def gaussian_kernel(taps: int, sigma: float) -> Precise:
    """Return a sampled Gaussian that sums to 1.

    >>> gaussian_kernel(5, 1.0).round(6).tolist()
    [0.054489, 0.244201, 0.40262, 0.244201, 0.054489]
    """
    place = np.arange(taps) - (taps - 1) / 2
    weights = np.exp(-0.5 * (place / sigma) ** 2)
    return weights / weights.sum()


def compress(image: Precise, quality: float) -> Precise:
    """Return the image after JPEG."""
    stream = io.BytesIO()
    to_image(image).save(stream, "JPEG", quality=quality)
    back = np.asarray(Image.open(stream), np.float64) / 255
    return back[None] if len(image) == 1 else np.moveaxis(back, 2, 0)


# The order is part of the definition: a digest modulo 5 points into it.
CORRUPTIONS: dict[str, Callable[[Precise, float, np.random.Generator], Precise]] = {
    "noise": lambda image, sigma, rng: image + sigma * rng.standard_normal(image.shape),
    "blur": lambda image, sigma, _: blur(image, sigma),
    "brightness": lambda image, factor, _: factor * image,
    "jpeg": lambda image, quality, _: compress(image, quality),
    "fog": lambda image, alpha, _: (1 - alpha) * image + alpha,
}


def choose_corruption(name: str, seed: int = 0) -> str:
    """Return which corruption the image of this name gets.

    >>> choose_corruption("0001.png")
    'blur'
    """
    return list(CORRUPTIONS)[_digest(name, seed) % len(CORRUPTIONS)]


def corrupt(image: NDArray[np.floating], name: str, strength: str, seed: int = 0, kind: str | None = None) -> Pixels:
    """Return a corrupted image, in steps of 1/255.

    Args:
        image: ``(channels, height, width)`` with one or three channels and values in [0, 1].
        name: of its file; it decides the corruption and seeds the noise.
        strength: "mild" or "strong".
        seed: enters the digest together with the name.
        kind: a name from :data:`CORRUPTIONS` to have this one instead of the one that the name decides.
    """
    if strength not in STRENGTHS:
        raise InputError(f"strength is {strength!r}, but it must be 'mild' or 'strong'. Choose one of the two.")
    if kind is not None:
        check_choice(kind, "corruption", CORRUPTIONS)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InputError(
            f"image {name!r} has shape {image.shape}, but (channels, height, width) with 1 or 3 channels is "
            "needed. Corruptions are defined for 2-D images."
        )
    low, high = float(image.min(initial=0)), float(image.max(initial=0))
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"image {name!r} has values from {low:.4g} to {high:.4g}, but values in [0, 1] are needed. "
            "Divide 8-bit values by 255."
        )
    chosen = choose_corruption(name, seed) if kind is None else kind
    rng = np.random.default_rng(_digest(name, seed))
    changed = CORRUPTIONS[chosen](np.asarray(image, np.float64), SETTINGS[chosen][strength], rng)
    return _to_bytes(changed).astype(np.float32) / np.float32(255)


def to_image(image: NDArray[np.floating]) -> Image.Image:
    """Return an image of one or three channels in 8 bits."""
    pixels = _to_bytes(image)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2))


def _digest(name: str, seed: int) -> int:
    return int(hashlib.sha256(f"{seed}:{name}".encode()).hexdigest(), 16)


def _to_bytes(image: NDArray[np.floating]) -> NDArray[np.uint8]:
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
