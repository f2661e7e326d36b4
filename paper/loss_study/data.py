r"""The cases of the study: drawn once, kept in files, read by every process that trains.

Training and validation cases are those of the shipped ensembles. Of the held-out cases, the first ones calibrate, the
next ones validate a calibration, and the rest are for the test; those of the test also exist strongly degraded:
pictures by the benchmark's corruptions, a volume x by one of the following, chosen by a digest of the case's name:

- ``noise``: :math:`|x + \sigma (n + i m)|`, n and m standard normal, as in the magnitude of a scan;
- ``blur``: a Gaussian in the plane of the slices;
- ``gain``: a factor times x;
- ``bias``: :math:`x \exp(b f)`, f a smooth random field of standard deviation 1, whose mean changes the gain as well;
- ``coarse``: every second voxel of the plane, each repeated.

Where a volume has no signal in any channel, it stays 0.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from segcal.atomic import written
from segcal.demo.tasks import HELD_OUT, TRAINING, VALIDATION, Task, get_task
from segcal.studies.corruptions import corrupt

# Cases in a file: what one process draws at a time.
CHUNK = 6


@dataclass(frozen=True)
class Sizes:
    """How many cases of each kind.

    Attributes:
        train: training cases of each task; the numbers of the shipped ensembles.
        valid: cases by which the best epoch is chosen.
        cal: cases that calibrators are fitted to.
        val: cases on which their penalties are chosen.
        test: cases that everything is measured on.
    """

    train: dict[str, int]
    valid: int = 8
    cal: int = 12
    val: int = 6
    test: int = 24


FULL = Sizes({"roads": 48, "tumour": 72, "streets": 72})
SMALL = Sizes({"roads": 4, "tumour": 4, "streets": 4}, valid=1, cal=2, val=1, test=2)


@dataclass(frozen=True)
class Stored:
    """One case.

    Attributes:
        id: its name.
        image: float32 ``(channels, *space)``.
        labels: int64 ``(*space)``.
    """

    id: str
    image: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Chunk:
    """Some cases of one part of a task, and the file that holds them."""

    task: str
    part: str
    indices: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return f"{self.task}-{self.part}-{self.indices[0]:03d}.npz"


def chunks(task: str, part: str, sizes: Sizes) -> list[Chunk]:
    """Return the files of one part of a task: train, valid, cal, val, test or corrupted."""
    starts = {"cal": 0, "val": sizes.cal, "test": sizes.cal + sizes.val, "corrupted": sizes.cal + sizes.val}
    counts = {"train": sizes.train[task], "valid": sizes.valid, "cal": sizes.cal, "val": sizes.val, "test": sizes.test}
    counts["corrupted"] = sizes.test
    first = starts.get(part, 0)
    indices = range(first, first + counts[part])
    return [Chunk(task, part, tuple(indices[start : start + CHUNK])) for start in range(0, counts[part], CHUNK)]


def all_chunks(tasks: tuple[str, ...], sizes: Sizes) -> Iterator[Chunk]:
    """Return every file of the study."""
    for part in ("train", "valid", "cal", "val", "test", "corrupted"):
        for task in tasks:
            yield from chunks(task, part, sizes)


def write_chunk(folder: Path, chunk: Chunk) -> None:
    """Draw the cases of a file and write it."""
    task = get_task(chunk.task)
    samples = [_draw(task, chunk.part, index) for index in chunk.indices]
    images, labels = (np.stack(each) for each in zip(*samples, strict=True))
    with written(folder / chunk.name) as beside:
        np.savez(beside, image=images, labels=labels)


def read_part(folder: Path, task: str, part: str, sizes: Sizes) -> list[Stored]:
    """Read all cases of one part of a task."""
    found = []
    for chunk in chunks(task, part, sizes):
        with np.load(folder / chunk.name) as arrays:
            images, labels = arrays["image"], arrays["labels"]
        names = [_case_id(chunk.task, index) for index in chunk.indices]
        found += [Stored(*one) for one in zip(names, images, labels, strict=True)]
    return found


def _case_id(task: str, index: int) -> str:
    return f"{task}_{index:04d}"


def _draw(task: Task, part: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    seed = {"train": TRAINING, "valid": VALIDATION}.get(part, HELD_OUT)
    sample = task.sample(index, seed)
    image = sample.image
    if part == "corrupted":
        image = degrade(image, _case_id(task.name, index))
    return image, sample.labels


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
