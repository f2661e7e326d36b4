"""A public dataset: where its cases lie in the published layout, and how one of them is read.

A dataset says which cases a network may train on and which are held out for calibration and test; groups (a video's
frames, an image's tiles, a patient's phases) are never divided. Images come as float32 ``(channels, *space)`` with
values that a network can take, labels as ``(*space)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from segcal.errors import InputError

Part: TypeAlias = Literal["train", "held_out"]
# The image (channels, *space) and the labels (*space) of a case.
Pair: TypeAlias = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Record:
    """One case of a dataset, not read yet.

    Attributes:
        id: the name of its predictions and labels.
        image: the file of its image.
        labels: the file of its labels.
        group: cases of one group stay in one part.
        part: whether networks train on it.
        window: the rows and columns of the file that it is; None is all of them.
    """

    id: str
    image: Path
    labels: Path
    group: str
    part: Part
    window: tuple[slice, slice] | None = None


@dataclass(frozen=True)
class Dataset:
    """A public dataset.

    Attributes:
        name: of its task, and of the folders of its results.
        title: for people.
        source: where to get it, in words.
        find: lists the cases of a folder in the published layout.
        read: reads one case.
        channels: of an image.
        class_names: one name per class.
        ignore: the label that does not count, or None.
        background: whether class 0 is what is left over, and Dice leaves it out.
        flips: axes of the plane along which a training crop may be mirrored.
        cal, val: how many held-out cases are for calibration and for validation, unless the user says otherwise.
        studies: of the protocol, likewise.
    """

    name: str
    title: str
    source: str
    find: Callable[[Path], list[Record]]
    read: Callable[[Record], Pair]
    channels: int
    class_names: tuple[str, ...]
    ignore: int | None = None
    background: bool = True
    flips: tuple[int, ...] = ()
    cal: int = 40
    val: int = 20
    studies: tuple[str, ...] = ("offsets", "flips", "calibration_size", "binning", "reliability", "worst_cases")

    def records(self, folder: Path) -> list[Record]:
        """List the cases of a folder; refuse one in which something is missing."""
        if not folder.is_dir():
            raise self.missing(folder, "the folder itself")
        records = self.find(folder)
        for part in ("train", "held_out"):
            if not any(record.part == part for record in records):
                raise self.missing(folder, f"every case of the part {part}")
        return records

    def missing(self, folder: Path, what: str) -> InputError:
        """Return the error that says what a folder lacks, and where the dataset is to be had."""
        return InputError(f"{folder} lacks {what}, but {self.title} in its published layout is needed. {self.source}")


def paired(dataset: Dataset, folder: Path, images: str, labels: str, extensions: tuple[str, ...]) -> list[list[Path]]:
    """Return the image and the label file of each stem of two folders, sorted; refuse an image without labels."""
    for name in (images, labels):
        if not (folder / name).is_dir():
            raise dataset.missing(folder, f"the folder {name}")
    found = {path.stem: path for path in sorted((folder / labels).iterdir()) if path.suffix.lower() in extensions}
    pairs = []
    for path in sorted((folder / images).iterdir()):
        if path.suffix.lower() in extensions and not path.name.startswith("."):
            if path.stem not in found:
                raise dataset.missing(folder, f"the labels of {images}/{path.name} in {labels}")
            pairs.append([path, found[path.stem]])
    return pairs
