"""Scenes: files that are read and written window by window, so that one of any size can be calibrated."""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import numpy as np

from segcal.cases.formats.base import Format
from segcal.cases.raster_file import Put, Where


class Scene(Format):
    """A folder of scenes; `window` is the part of space that :meth:`header` and :meth:`read` speak of, or None."""

    blanks = True
    window: Where | None = None

    def part(self, where: Where) -> Self:
        """Return the same folder, of which only a window is seen."""
        chosen = copy.copy(self)
        chosen.window = where
        return chosen

    @abstractmethod
    def tile(self, case_id: str) -> tuple[int, ...]:
        """Return the size of what is stored in one piece, along the axes of space."""

    def blank(self, case_id: str) -> float | None:
        """Return the value of pixels without data; None where all have data."""
        return None

    @abstractmethod
    def canvas(
        self, case_id: str, path: Path, channels: int, dtype: np.dtype[Any], blank: float | None
    ) -> AbstractContextManager[Put]:
        """Give what writes windows ``(channels, *space)`` of a new scene that lies where a case does."""

    def write(self, case_id: str, values: np.ndarray, folder: Path, decision: np.ndarray | None) -> Sequence[str]:
        """Write a scene at once; where it has no data it stays without."""
        path, blank, valid = folder / self.path(case_id).name, self.blank(case_id), self.read(case_id).mask
        with self.canvas(case_id, path, len(values), values.dtype, blank) as put:
            put(whole(values.shape[1:]), values if valid is None else np.where(valid, values, values.dtype.type(blank)))
        return [path.name]


def whole(space: Sequence[int]) -> Where:
    """Return the window that is all of space.

    >>> whole((3, 5))
    (slice(0, 3, None), slice(0, 5, None))
    """
    return tuple(slice(0, size) for size in space)


def sizes(where: Where) -> tuple[int, ...]:
    """Return the shape of a window."""
    return tuple(one.stop - one.start for one in where)
