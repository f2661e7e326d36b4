r"""The paper's five photometric corruptions at two strengths (Tables 6 and 7): pictures change, labels stay.

For a picture x with values in [0, 1]:

- ``noise``: :math:`x + \sigma n`, n standard normal for every pixel and channel;
- ``blur``: a separable Gaussian of k taps, normalised to sum 1; the border is mirrored without repeating its edge;
- ``brightness``: a factor times x;
- ``jpeg``: written and read at a quality, with the encoder's usual chroma subsampling;
- ``fog``: :math:`(1 - \alpha) x + \alpha`, white and uniform.

The result is clipped to [0, 1] and rounded to 8 bits once. Which corruption a picture gets follows from its name: the
SHA-256 digest of ``"seed:name"``, as a number, modulo 5, in the order above. The digest also seeds the noise. The
strength is no part of it, so the two strengths of a picture are of one kind.
"""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import correlate1d

from segcal.atomic import written
from segcal.errors import InputError

Picture = NDArray[np.float32]
Change = Callable[[NDArray[np.float64], float, np.random.Generator], NDArray[np.float64]]

STRENGTHS = ("mild", "strong")


def add_noise(picture: NDArray[np.float64], sigma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the picture with Gaussian noise, drawn anew for every pixel and channel."""
    return picture + sigma * rng.standard_normal(picture.shape)


def blur(picture: NDArray[np.float64], sigma: float, _: np.random.Generator) -> NDArray[np.float64]:
    """Return the picture blurred along both axes."""
    kernel = gaussian_kernel(BLUR_TAPS[sigma], sigma)
    for axis in (1, 2):
        picture = correlate1d(picture, kernel, axis=axis, mode="mirror")
    return picture


def brighten(picture: NDArray[np.float64], factor: float, _: np.random.Generator) -> NDArray[np.float64]:
    """Return the picture times a factor."""
    return factor * picture


def compress(picture: NDArray[np.float64], quality: float, _: np.random.Generator) -> NDArray[np.float64]:
    """Return the picture after JPEG."""
    pixels = _to_bytes(picture)
    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2)).save(stream, "JPEG", quality=quality)
    back = np.asarray(Image.open(stream), np.float64) / 255
    return back[None] if len(pixels) == 1 else np.moveaxis(back, 2, 0)


def add_fog(picture: NDArray[np.float64], alpha: float, _: np.random.Generator) -> NDArray[np.float64]:
    """Return the picture mixed with white."""
    return (1 - alpha) * picture + alpha


# The order is part of the definition: a digest modulo 5 points into it.
CORRUPTIONS: dict[str, Change] = {
    "noise": add_noise,
    "blur": blur,
    "brightness": brighten,
    "jpeg": compress,
    "fog": add_fog,
}
# Table 6 of the paper.
SETTINGS: dict[str, dict[str, float]] = {
    "noise": {"mild": 0.03, "strong": 0.10},
    "blur": {"mild": 1.0, "strong": 3.0},
    "brightness": {"mild": 1.2, "strong": 1.8},
    "jpeg": {"mild": 60, "strong": 10},
    "fog": {"mild": 0.1, "strong": 0.5},
}
BLUR_TAPS = {1.0: 5, 3.0: 13}


def gaussian_kernel(taps: int, sigma: float) -> NDArray[np.float64]:
    """Return a sampled Gaussian that sums to 1.

    >>> gaussian_kernel(5, 1.0).round(6).tolist()
    [0.054489, 0.244201, 0.40262, 0.244201, 0.054489]
    """
    place = np.arange(taps) - (taps - 1) / 2
    weights = np.exp(-0.5 * (place / sigma) ** 2)
    return weights / weights.sum()


def choose_corruption(name: str, seed: int = 0) -> str:
    """Return which corruption the picture of this name gets.

    >>> choose_corruption("0001.png")
    'blur'
    """
    return list(CORRUPTIONS)[_digest(name, seed) % len(CORRUPTIONS)]


def corrupt(picture: NDArray[np.floating], name: str, strength: str, seed: int = 0, kind: str | None = None) -> Picture:
    """Return a corrupted picture, in steps of 1/255.

    Args:
        picture: ``(channels, height, width)`` with one or three channels and values in [0, 1].
        name: of its file; it decides the corruption and seeds the noise.
        strength: "mild" or "strong".
        seed: enters the digest together with the name.
        kind: a name from :data:`CORRUPTIONS` to have this one instead of the one that the name decides.
    """
    _check(picture, name, strength, kind)
    chosen = choose_corruption(name, seed) if kind is None else kind
    rng = np.random.default_rng(_digest(name, seed))
    changed = CORRUPTIONS[chosen](np.asarray(picture, np.float64), SETTINGS[chosen][strength], rng)
    return _to_bytes(changed).astype(np.float32) / np.float32(255)


def corrupt_folder(
    source: Path,
    target: Path,
    strength: str,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, str]:
    """Write a corrupted copy of a folder of pictures, as PNG files of the same stems.

    Args:
        source: the folder; every file in it must be a picture, and its whole file name decides its corruption.
        target: where the copies go; made if it is not there.
        strength: "mild" or "strong".
        seed: enters the digests.
        progress: called with the name of each file when it is written.

    Returns:
        the corruption of each file, by its name.
    """
    paths = sorted(path for path in source.iterdir() if path.is_file()) if source.is_dir() else []
    if not paths:
        raise InputError(f"{source} holds no files, but a folder of pictures is needed. Check the path.")
    stems = [path.stem for path in paths]
    twice = next((stem for stem in stems if stems.count(stem) > 1), None)
    if twice is not None:
        raise InputError(f"{source} holds two pictures named {twice!r}, but copies are PNG files. Rename one of them.")
    chosen = {}
    for path in paths:
        pixels = _to_bytes(corrupt(_read(path), path.name, strength, seed))
        with written(target / f"{path.stem}.png") as beside:
            Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2)).save(beside, "PNG")
        chosen[path.name] = choose_corruption(path.name, seed)
        progress(path.name)
    return chosen


def _read(path: Path) -> Picture:
    try:
        with Image.open(path) as file:
            pixels = np.asarray(file if file.mode == "L" else file.convert("RGB"))
    except OSError as error:
        raise InputError(f"{path} is not readable as a picture ({error}). Leave only pictures in the folder.") from None
    picture = pixels.astype(np.float32) / np.float32(255)
    return picture[None] if picture.ndim == 2 else np.moveaxis(picture, 2, 0)


def _check(picture: NDArray[np.floating], name: str, strength: str, kind: str | None) -> None:
    if strength not in STRENGTHS:
        raise InputError(f"strength is {strength!r}, but it must be 'mild' or 'strong'. Choose one of the two.")
    if kind is not None and kind not in CORRUPTIONS:
        raise InputError(f"no corruption is named {kind!r}. Choose one of: {', '.join(CORRUPTIONS)}.")
    if picture.ndim != 3 or picture.shape[0] not in (1, 3):
        raise InputError(
            f"picture {name!r} has shape {picture.shape}, but (channels, height, width) with 1 or 3 channels is "
            "needed. Corruptions are defined for 2-D pictures."
        )
    low, high = float(picture.min(initial=0)), float(picture.max(initial=0))
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"picture {name!r} has values from {low:.4g} to {high:.4g}, but values in [0, 1] are needed. "
            "Divide 8-bit values by 255."
        )


def _digest(name: str, seed: int) -> int:
    return int(hashlib.sha256(f"{seed}:{name}".encode()).hexdigest(), 16)


def _to_bytes(picture: NDArray[np.floating]) -> NDArray[np.uint8]:
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
