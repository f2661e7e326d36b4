"""Two real datasets in one folder, divided for a study of losses: nothing that a network saw calibrates or tests it.

The folder has ``cardiac/{images,labels}`` (NIfTI, two phases of each patient) and ``camvid/{images,labels}`` (JPEG and
PNG, frames of videos). Cardiac volumes are divided by patient. Of the street scenes, the two shorter videos train and
the longest is held out: its first third calibrates, the next sixth chooses penalties, the rest is the test, in the
order of the frames, so that neighbours are apart but for two borders.

Networks see pictures: volumes are cut into slices of one size for training, and predicted slice by slice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from segcal.cases.nifti_file import nifti_values, open_nifti
from segcal.errors import InputError
from segcal.types import IGNORED

PARTS = ("train", "valid", "cal", "val", "test")
# The shares of patients; the rest is the test.
PATIENTS = {"train": 0.44, "valid": 0.06, "cal": 0.2, "val": 0.08}
# The shares of the held-out video; of the others, every eighth block of 10 frames chooses the best epoch.
FRAMES = {"cal": 1 / 3, "val": 1 / 6}
HELD_OUT_VIDEO = "Seq05VD"
VOID = 11
SLICE = 192


@dataclass(frozen=True)
class RealTask:
    """One dataset.

    Attributes:
        name: of its folder.
        num_classes: C.
        channels: of an image.
        background: whether class 0 is what is left over, and Dice leaves it out.
        flips: axes along which a picture may be mirrored.
    """

    name: str
    num_classes: int
    channels: int
    background: bool
    flips: tuple[int, ...]


TASKS = {
    "cardiac": RealTask("cardiac", 4, 1, True, (0, 1)),
    "camvid": RealTask("camvid", 11, 3, False, (1,)),
}


@dataclass(frozen=True)
class RealCase:
    """A case: its name, the files of image and labels."""

    id: str
    image: Path
    labels: Path


def find_parts(root: Path, task: str) -> dict[str, list[RealCase]]:
    """Return the cases of each of :data:`PARTS`."""
    images = sorted((root / task / "images").glob("*")) if (root / task / "images").is_dir() else []
    cases = []
    for image in images:
        stem = image.name.split(".")[0]
        found = sorted((root / task / "labels").glob(f"{stem}.*"))
        if len(found) != 1:
            raise InputError(f"{image} has {len(found)} files of labels, but one is needed. Check {root / task}.")
        cases.append(RealCase(stem, image, found[0]))
    if not cases:
        raise InputError(f"{root} has no {task}/images, but the study needs it. Name the folder of the real data.")
    parts = dict(_by_patient(cases) if task == "cardiac" else _by_video(cases))
    empty = [part for part in PARTS if not parts.get(part)]
    if empty:
        raise InputError(f"{root / task} has {len(cases)} cases, but {', '.join(empty)} would be empty. Add cases.")
    return parts


def _by_patient(cases: Sequence[RealCase]) -> Iterator[tuple[str, list[RealCase]]]:
    patients = sorted({case.id.split("_")[0] for case in cases})
    order = np.random.default_rng(0).permutation(len(patients))
    start, share = 0, 0.0
    for part in PARTS:
        share += PATIENTS.get(part, 1.0)
        stop = min(round(share * len(patients)), len(patients))
        mine = {patients[number] for number in order[start:stop]}
        yield part, [case for case in cases if case.id.split("_")[0] in mine]
        start = stop


def _by_video(cases: Sequence[RealCase]) -> Iterator[tuple[str, list[RealCase]]]:
    held_out = [case for case in cases if HELD_OUT_VIDEO in case.id]
    others = [case for case in cases if HELD_OUT_VIDEO not in case.id]
    chooses = [number // 10 % 8 == 7 for number in range(len(others))]
    yield "train", [case for case, valid in zip(others, chooses, strict=True) if not valid]
    yield "valid", [case for case, valid in zip(others, chooses, strict=True) if valid]
    first, second = (round(share * len(held_out)) for share in (FRAMES["cal"], FRAMES["cal"] + FRAMES["val"]))
    yield from (("cal", held_out[:first]), ("val", held_out[first:second]), ("test", held_out[second:]))


def read_case(task: str, case: RealCase) -> tuple[np.ndarray, np.ndarray]:
    """Return image ``(channels, *space)`` float32 and labels ``(*space)`` int64, void voxels as :data:`IGNORED`."""
    if task == "cardiac":
        image, labels = (nifti_values(open_nifti(path), path).transpose() for path in (case.image, case.labels))
        values = np.asarray(image, np.float32)
        return ((values - values.mean()) / max(float(values.std()), 1e-6))[None], labels.astype(np.int64)
    with Image.open(case.image) as picture, Image.open(case.labels) as truth:
        pixels = np.asarray(picture.convert("RGB"), np.float32).transpose(2, 0, 1) / 255
        labels = np.asarray(truth, np.int64)
    return pixels, np.where(labels == VOID, IGNORED, labels)


def pictures(image: np.ndarray, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what a network trains on: a picture as it is, or the slices of a volume, all of one size."""
    if labels.ndim == 2:
        yield image, labels
        return
    for number in range(labels.shape[0]):
        yield _fitted(image[:, number], 0.0), _fitted(labels[number][None], IGNORED)[0]


def _fitted(array: np.ndarray, fill: float) -> np.ndarray:
    """Return the middle of each plane ``(channels, rows, columns)``, filled up to :data:`SLICE` where it is smaller."""
    made = np.full((len(array), SLICE, SLICE), fill, array.dtype)
    size = [min(length, SLICE) for length in array.shape[1:]]
    made[:, *_middle((SLICE, SLICE), size)] = array[:, *_middle(array.shape[1:], size)]
    return made


def _middle(shape: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    starts = [(whole - part) // 2 for whole, part in zip(shape, size, strict=True)]
    return tuple(slice(start, start + part) for start, part in zip(starts, size, strict=True))
