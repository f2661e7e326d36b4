"""Grown and shrunk masks of new cases, and their volumes with intervals, by margins that were learned.

``OUT/CASE/STRUCTURE`` has the ending, header and axes of the mask: 1 in the outer mask, 2 in the mask, 3 in the inner
mask. Each structure has a file of its own, because outer masks overlap. An empty mask has none: nothing grows from it,
and its volume has no interval. Run again, the same call goes on.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from PIL import Image

from segcal.arguments import typed
from segcal.cases.base import CaseError
from segcal.cases.masks import MaskCase, MaskCases
from segcal.cases.nifti_file import EXTENSIONS, open_nifti, save_like
from segcal.cases.parallel import Workers, map_ids
from segcal.cases.records import Records, input_digest
from segcal.documents import json_text
from segcal.errors import InputError
from segcal.names import file_names
from segcal.statistics.surface import box_of
from segcal.target import check_apart, claim
from segcal.trust.guarantees import INNER, MASK, OUTER
from segcal.trust.margins import Margin, Margins, Spacing, distance_from, volume_scale

# Distances of one length differ by rounding between files and between libraries: on the safe side.
REACH = 1 + 1e-5


class VolumeRow(NamedTuple):
    """The volume of one structure, in ml or voxels; no interval of an empty mask, or without support."""

    case: str
    structure: str
    volume: float
    low: float | None
    high: float | None


@typed
def apply_margins(
    margins: Margins | str | os.PathLike[str],
    masks: MaskCases,
    folder: str | os.PathLike[str],
    workers: Workers = 1,
    progress: Callable[[str], object] = str,
    failed: Callable[[CaseError], None] | None = None,
) -> list[VolumeRow]:
    """Write grown and shrunk masks of new cases, and return their volumes with intervals.

    Args:
        margins: what :func:`segcal.fit_margins` returned, or the file that it was saved to.
        masks: predicted label maps, with as many runs as the margins were learned with.
        folder: a new or empty folder, or one that the same call began to fill.
        workers: how many processes work on cases.
        progress: called with the id of each case when it is done.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
    """
    known = margins if isinstance(margins, Margins) else Margins.load(margins)
    if len(masks.runs) != known.runs:
        raise InputError(f"masks has {len(masks.runs)} runs, but margins were learned with {known.runs}. Name as many.")
    check_apart(Path(folder), [run.folder for run in masks.runs])
    rows: list[VolumeRow] = []
    with claim(Path(folder)):
        for case_id, own in map_ids(masks.ids, _Grower(known, masks, Path(folder)), workers, failed):
            rows += own
            progress(case_id)
    return rows


class _Grower:
    """Grows the masks of one case; picklable, for several processes."""

    def __init__(self, margins: Margins, masks: MaskCases, target: Path) -> None:
        self._margins, self._masks, self._records = margins, masks, Records(target)
        self._made_by = f"margins {hashlib.sha256(json_text(msgspec.to_builtins(margins)).encode()).hexdigest()}"
        self._records.require_only(self._made_by, "grown masks")
        names = {each.structure: each.name for each in margins.structures}
        self._names = file_names([names.get(number, "") for number in range(max(names, default=0) + 1)])

    def __call__(self, case_id: str) -> list[VolumeRow]:
        case, source = self._masks.read(case_id), self._masks.files[case_id]
        if self._margins.unit == "mm" and case.spacing is None:
            raise CaseError(case_id, f"{source} has no voxel size, but margins are in mm. Add it to the header.")
        made_from = f"{self._made_by} {input_digest(source)}"
        rows = [self._volume(case_id, case, each) for each in self._margins.structures]
        if self._records.done(case_id, made_from) is None:
            self._records.write(case_id, made_from, lambda beside: self._grow(case, beside / case_id, source))
        return rows

    def _grow(self, case: MaskCase, folder: Path, source: Path) -> Iterator[Path]:
        folder.mkdir()
        for margin in self._margins.structures:
            if (mask := case.runs[0] == margin.structure).any():
                levels = nested_levels(mask, margin, case.spacing if self._margins.unit == "mm" else None)
                yield _write_like(source, levels, folder / f"{self._names[margin.structure]}{_ending(source)}")

    def _volume(self, case_id: str, case: MaskCase, margin: Margin) -> VolumeRow:
        size = math.prod(case.spacing or ()) / 1000 if self._margins.volumes_in_ml else 1.0
        volumes = [size * np.count_nonzero(each == margin.structure) for each in case.runs]
        mean = float(np.mean(volumes))
        if not mean or margin.volume is None:
            return VolumeRow(case_id, margin.name, mean, None, None)
        reach = margin.volume * volume_scale(volumes)
        return VolumeRow(case_id, margin.name, mean, max(mean - reach, 0.0), mean + reach)


def nested_levels(mask: np.ndarray, margin: Margin, spacing: Spacing) -> np.ndarray:
    """Return 1 in the outer mask, 2 in the mask and 3 in the inner mask, as far as there are margins for them."""
    levels = np.where(mask, np.uint8(MASK), np.uint8(0))
    if margin.outer:
        more = [math.ceil(margin.outer * REACH / size) for size in spacing or [1.0] * mask.ndim]
        box = box_of(mask, more)
        levels[box][(distance_from(mask[box], spacing) <= margin.outer * REACH) & ~mask[box]] = OUTER
    if margin.inner is not None:
        box = box_of(mask, [1] * mask.ndim)
        levels[box][(distance_from(~mask[box], spacing) > margin.inner * REACH) & mask[box]] = INNER
    return levels


def _ending(source: Path) -> str:
    return next((end for end in EXTENSIONS if source.name.lower().endswith(end)), source.suffix.lower())


def _write_like(source: Path, levels: np.ndarray, path: Path) -> Path:
    """Write a map in the form of the mask that it belongs to."""
    if path.name.endswith(EXTENSIONS):
        image = open_nifti(source)
        save_like(image, levels.reshape(image.shape), path)
    elif path.suffix == ".png":
        Image.fromarray(levels).save(path, format="PNG")
    else:
        (np.save if path.suffix == ".npy" else np.savez_compressed)(path, levels)
    return path
