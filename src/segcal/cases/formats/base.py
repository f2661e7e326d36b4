"""The contract of a file format: one folder of scores, listed, looked at, read and written case by case.

A format knows files and axes and nothing else. The user declares what the numbers mean (`kind`). Pooling and labels
belong to :mod:`segcal.cases.files`, and keeping a decision through rounding to :mod:`segcal.cases.write`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from segcal.cases.geometry import Geometry
from segcal.cases.labels import Axes
from segcal.cases.records import input_digest
from segcal.cases.remote import Remote
from segcal.errors import InputError
from segcal.names import clean
from segcal.regions import Regions
from segcal.types import Kind


@dataclass(frozen=True)
class Options:
    """Declarations of a user about the files of a folder."""

    key: str | None = None  # the array to read from files that hold several
    class_axis: int | None = None  # None is the format's own convention
    class_pattern: str = r"(?P<id>.+)_(?P<cls>\d+)"  # of the name of a file of one class
    properties: Path | None = None  # another folder with nnU-Net's CASE.pkl, for predictions that have none
    calibration: bool = False  # to be fitted or judged on, so data that a network was trained on is refused
    remote: Remote | None = field(default=None, repr=False, compare=False)  # what fetches, where the folder is a URL


@dataclass(frozen=True)
class Header:
    """Shape (classes first) and dtype of a stored array, known before its values are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Stored:
    """Content of one file of scores."""

    values: np.ndarray | Tensor  # classes first, as stored
    mask: np.ndarray | None = None  # True where the prediction is real
    spacing: tuple[float, ...] | None = None  # the voxel size along each axis of space
    labels: np.ndarray | None = None  # of formats that keep them with the scores; -1 where a voxel does not count


@dataclass(frozen=True)
class FormatFacts:
    """FormatFacts that a folder as a whole says about its cases; `labelled`: its files hold the labels too."""

    kind: Kind | None = None
    pooling: str | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None
    ignore: int | None = None
    label_axes: Axes | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    labelled: bool = False
    regions: Regions | None = None


class Format(ABC):
    """One folder of scores; `files` are those of each case, the first of them the one that completes it."""

    name: ClassVar[str]
    # The files of a case and notes, for the table of the documentation.
    documented: ClassVar[tuple[str, str]]
    extensions: ClassVar[tuple[str, ...]]  # how its files end
    by_ending: ClassVar[bool] = True  # a folder with such files and no others is of this format
    last_axis: ClassVar[bool] = False  # where nothing is declared, classes are the last axis
    has_mask: ClassVar[bool] = False  # cases may have voxels that were never predicted
    blanks: ClassVar[bool] = False  # outside of its mask there are no scores, whatever is stored
    values_kind: ClassVar[Kind | None] = None  # of `Stored.values`, where that differs from the declared kind

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options
        self.remote = options.remote
        self.files: dict[str, tuple[Path, ...]] = self.find()
        if not self.files:
            raise InputError(
                f"predictions {folder} has no {self.name} files, but files ending in {', '.join(self.extensions)} are "
                "needed. Check the path, or declare another format."
            )

    @classmethod
    def claims(cls, folder: Path) -> bool:
        """Whether a folder says by itself that it is of this format."""
        return False

    @classmethod
    def check_only(cls, folder: Path, remote: Remote | None) -> None:
        """Refuse a folder that has files of this ending and no others, where these could be of two formats."""
        return

    def find(self) -> dict[str, tuple[Path, ...]]:
        """List the cases of the folder."""
        return {case_id: (path,) for case_id, path in find_files(self.folder, self.extensions).items()}

    def facts(self) -> FormatFacts:
        """Return what the folder as a whole says."""
        return FormatFacts()

    @abstractmethod
    def header(self, case_id: str) -> Header:
        """Look at a case without reading its values."""

    @abstractmethod
    def read(self, case_id: str) -> Stored:
        """Read one case."""

    @abstractmethod
    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write a case like the one that was read, with other values.

        Args:
            case_id: which case to follow in name, key, axis order and header.
            values: the scores, classes first, in the dtype to be stored.
            folder: an empty folder.
            decision: the winning class of each voxel where it is not the one the input's own label map shows.

        Returns:
            the names written, the one that completes the case last.
        """

    def write_shared(self, folder: Path) -> None:
        """Write what belongs to the folder and not to a case; most formats have nothing of the kind."""
        return

    def open_copy(self, folder: Path) -> Self:
        """Return this format on another folder that was written by it."""
        other = copy.copy(self)
        other.folder, other.remote = folder, None
        other.files = other.find()
        return other

    def geometry(self, case_id: str) -> list[Geometry]:
        """Return what the files of a case say about where their voxels lie; most formats say nothing."""
        return []

    def lacking(self, case_id: str) -> str:
        """Return which parts of a case's scores are not there, as the end of a sentence; empty where all are."""
        return ""

    def stored_label(self, case_id: str, space: tuple[int, ...]) -> np.ndarray | None:
        """Return the label map that was stored with the prediction, or None."""
        return None

    def path(self, case_id: str) -> Path:
        """Return the file that holds the scores."""
        if case_id not in self.files:
            raise InputError(f"{self.folder} has no scores for it, but every member needs them. Add the file.")
        path = self.files[case_id][0]
        return path if self.remote is None else self.remote.fetched(path.name)

    def sources(self, case_id: str) -> list[Path]:
        """Return the files that a case is read from."""
        return list(self.files.get(case_id, ()))

    def digests(self, case_id: str) -> list[str]:
        """Return a digest of each file that a case is read from; another one means another file of the same name."""
        return [
            input_digest(path) if self.remote is None or path.parent != self.folder else self.remote.stamp(path.name)
            for path in self.sources(case_id)
        ]

    def class_axis(self, ndim: int, default: int | None = None) -> int:
        """Return the axis of the classes in an array of `ndim` axes: the declared one, or the default."""
        default = (-1 if self.last_axis else 0) if default is None else default
        axis = default if self.options.class_axis is None else self.options.class_axis
        if not -ndim <= axis < max(ndim, 1):
            raise InputError(f"class_axis is {axis}, but the array has {ndim} axes. Declare an axis that is there.")
        return axis % ndim if ndim else 0

    def seen(self, shape: Sequence[int], dtype: np.dtype[Any], axis: int | None = None) -> Header:
        """Return the header of an array whose classes are at an axis."""
        sizes = [int(size) for size in shape]
        axis = self.class_axis(len(sizes)) if axis is None else axis
        return Header((*sizes[axis : axis + 1], *sizes[:axis], *sizes[axis + 1 :]), dtype)

    def classes_first(self, values: np.ndarray, axis: int | None = None) -> np.ndarray:
        """Return a view of what is stored, classes first."""
        axis = self.class_axis(values.ndim) if axis is None else axis
        return np.moveaxis(values, axis, 0) if values.ndim else values

    def as_stored(self, values: np.ndarray) -> np.ndarray:
        """Return a view with the classes back where the files have them."""
        return np.moveaxis(values, 0, self.class_axis(values.ndim))


def check_folder(folder: Path, name: str, content: str) -> None:
    """Refuse what is no folder."""
    if not folder.is_dir():
        raise InputError(f"{name} {folder} is not a folder, but one with {content} a case is needed. Check the path.")


def find_files(folder: Path, extensions: Sequence[str]) -> dict[str, Path]:
    """Return case id -> file for the files of a folder, by stem; two files of one stem are an error.

    Ids go everywhere: to terminals, into results, into names of new files. They are clean from here on, and only the
    file itself keeps the name that it has.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        extension = next((end for end in extensions if path.name.lower().endswith(end)), None)
        if extension is None or path.name.startswith("."):
            continue
        case_id = clean(path.name[: -len(extension)])
        if case_id in found:
            raise InputError(
                f"{folder} has both {found[case_id].name} and {path.name}, but a case needs one file. Move one away."
            )
        found[case_id] = path
    return found
