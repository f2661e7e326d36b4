"""Cases of masks alone: predicted label maps, whose voxel size counts, and true ones where they are known."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from segcal.arguments import typed
from segcal.cases.base import naming_case
from segcal.cases.files import LabelFolder
from segcal.cases.geometry import check_alike
from segcal.cases.labels import Axes, LabelMap
from segcal.cases.nifti_file import EXTENSIONS
from segcal.cases.split import Grouping, resolve_groups
from segcal.checks import MAX_CLASSES, as_tensor, check_labels
from segcal.errors import InputError

PathLike = str | os.PathLike[str]


class MaskCase(NamedTuple):
    """Label maps ``(*space)`` of one case; `truth` is -1 where voxels do not count, `spacing` in mm."""

    runs: list[np.ndarray]
    truth: np.ndarray | None
    spacing: tuple[float, ...] | None


class MaskCases:
    """Cases in folders of label maps (NIfTI, npy, npz, PNG), by the names of the first.

    Args:
        predictions: a folder of predicted label maps; or several, one per run, of which the first has the masks.
        labels: the folder of true label maps.
        groups: case id -> group; or a regular expression with one group; or a CSV file with the columns id, group.
        class_names: names of the labels from 0 on.
        ignore: the true label of voxels that do not count.
        label_axes: how true labels in NIfTI follow predictions that are other arrays.
        ignore_geometry: go on although headers say that files of one case lie at different positions.
    """

    @typed
    def __init__(
        self,
        predictions: PathLike | Sequence[PathLike],
        labels: PathLike | None = None,
        groups: Grouping | None = None,
        class_names: Sequence[str] | None = None,
        ignore: int | None = None,
        label_axes: Axes | None = None,
        ignore_geometry: bool = False,
    ) -> None:
        folders = [predictions] if isinstance(predictions, str | os.PathLike) else list(predictions)
        if not folders:
            raise InputError("predictions is an empty list, but a folder of label maps is needed. Name one.")
        self.runs = [LabelFolder(Path(folder), axes="xyz", role="predictions") for folder in folders]
        self.files, self.ids = self.runs[0].files, tuple(self.runs[0].files)
        stored = all(path.name.lower().endswith(EXTENSIONS) for path in self.files.values())
        self.labels = None if labels is None else LabelFolder(Path(labels), axes="xyz" if stored else label_axes)
        self.groups = dict(zip(self.ids, self.ids, strict=True)) if groups is None else resolve_groups(groups, self.ids)
        self.class_names, self.ignore, self.ignore_geometry = class_names, ignore, ignore_geometry

    def read(self, case_id: str) -> MaskCase:
        """Read and compare the label maps of one case; a failure names it."""
        with naming_case(case_id):
            first = self.runs[0].read(case_id, (0, 0, 0))
            space = first.values.shape
            maps = [_checked(first, space), *(_checked(run.read(case_id, space), space) for run in self.runs[1:])]
            truth = None if self.labels is None else _checked(self.labels.read(case_id, space), space, self.ignore)
            if not self.ignore_geometry:
                folders = [*self.runs, *filter(None, [self.labels])]
                check_alike(found for folder in folders for found in folder.geometry(case_id))
        return MaskCase(maps, truth, first.spacing if len(first.spacing or ()) == len(space) else None)


def _checked(found: LabelMap, space: tuple[int, ...], ignore: int | None = None) -> np.ndarray:
    values, name = found.values, str(found.path)
    if values.shape != space or not values.size:
        raise InputError(
            f"{name} has shape {values.shape}, but its case has {space}, not empty. Bring both to one grid."
        )
    return check_labels(as_tensor(values, name), name, space, MAX_CLASSES, ignore).int().numpy()
