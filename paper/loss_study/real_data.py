"""Two real datasets in one folder, divided for a study of losses: nothing that a network saw calibrates or tests it.

The folder has ``cardiac/{images,labels}`` (NIfTI, two phases of each patient) and ``camvid/{images,labels}`` (JPEG and
PNG, frames of videos). Cardiac volumes are divided by patient. Of the street scenes, the two shorter videos train and
the longest is held out: its first third calibrates, the next sixth chooses penalties, the rest is the test, in the
order of the frames, so that neighbours are apart but for two borders. Nothing is kept back to choose an epoch: the
last weights are taken.

Networks see pictures: volumes are cut into slices of one size for training, and predicted slice by slice.
:func:`pack_root` makes the folder small enough to travel: pictures of half the size, the middle of each slice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from segcal.cases.nifti_file import nifti_values, open_nifti
from segcal.errors import InputError
from segcal.types import IGNORED

PARTS = ("train", "cal", "val", "test")
# The shares of patients; the rest is the test.
PATIENTS = {"train": 0.5, "cal": 0.2, "val": 0.08}
# The shares of the held-out video. Neighbouring frames say the same: every second one is fitted to.
FRAMES = {"cal": 1 / 3, "val": 1 / 6}
EVERY = 2
HELD_OUT_VIDEO = "Seq05VD"
# So many neighbouring frames of the test are drawn together when intervals are made.
BLOCK = 10
VOID = 11
SLICE = 144
QUALITY = 92


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
    cases = find_cases(root, task)
    parts = dict(_by_patient(cases) if task == "cardiac" else _by_video(cases))
    empty = [part for part in PARTS if not parts.get(part)]
    if empty:
        raise InputError(f"{root / task} has {len(cases)} cases, but {', '.join(empty)} would be empty. Add cases.")
    return parts


def find_cases(root: Path, task: str) -> list[RealCase]:
    """Return all cases of a task."""
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
    return cases


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
    first, second = (round(share * len(held_out)) for share in (FRAMES["cal"], FRAMES["cal"] + FRAMES["val"]))
    yield from (("train", others), ("cal", held_out[:first:EVERY]), ("val", held_out[first:second:EVERY]))
    yield "test", held_out[second:]


def groups(task: str, ids: Sequence[str]) -> list[int]:
    """Return what must be drawn together: the number of the patient, or of the block of neighbouring frames."""
    if task == "cardiac":
        patients = sorted({name.split("_")[0] for name in ids})
        return [patients.index(name.split("_")[0]) for name in ids]
    return [number // BLOCK for number in range(len(ids))]


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


def pack_root(root: Path, out: Path) -> None:
    """Write a folder like `root`, smaller: pictures of half the size as JPEG, the middle of each slice as 8 bits."""
    for task in TASKS:
        for folder in ("images", "labels"):
            (out / task / folder).mkdir(parents=True, exist_ok=True)
        for case in find_cases(root, task):
            for folder, source in (("images", case.image), ("labels", case.labels)):
                _pack(source, out / task / folder / source.name, folder == "labels")


def _pack(source: Path, target: Path, labels: bool) -> None:
    if target.name.endswith((".nii", ".nii.gz")):
        volume = nifti_values(open_nifti(source), source)
        size = [min(length, SLICE) for length in volume.shape[:2]]
        low, high = (0, 255) if volume.dtype == np.uint8 else (float(volume.min()), float(volume.max()))
        levels = volume if labels else np.rint((volume - low) * (255 / max(high - low, 1e-9)))
        middle = levels[_middle(volume.shape[:2], size)].astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(middle, np.eye(4)), target)
        return
    with Image.open(source) as picture:
        half = (picture.width // 2, picture.height // 2)
        if labels:
            picture.resize(half, Image.Resampling.NEAREST).save(target)
        else:
            picture.resize(half, Image.Resampling.BOX).save(target, quality=QUALITY)
