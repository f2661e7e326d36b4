"""The cases of the study: drawn once, kept in files, read by every process that trains.

Training and validation cases are those of the shipped ensembles. Of the held-out cases, the first ones calibrate, the
next ones validate a calibration, and the rest are for the test; those of the test also exist degraded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segcal.atomic import written
from segcal.demo.loss_study.shift import degrade
from segcal.demo.tasks import HELD_OUT, TRAINING, VALIDATION, Task, get_task

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
