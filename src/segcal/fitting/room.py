"""The memory that a sample of voxels is kept in."""

import torch
from torch import Tensor

from segcal.calibrators.surroundings import CONTEXTS
from segcal.errors import InputError
from segcal.fitting.sample import Voxels


class Room:
    """Room for a number of voxels, reserved as a whole before any case is read.

    Small pieces kept one by one would lie between the large arrays of the cases, and memory in between could not be
    used again: the process would grow with every case, though it keeps little of each.
    """

    def __init__(self, num_classes: int, most: int, contexts: int | None) -> None:
        around = (None, None) if contexts is None else (torch.empty(contexts, most), torch.empty(most))
        labels = torch.empty(most, dtype=torch.int32)
        self._voxels = Voxels(torch.empty(num_classes, most), labels, torch.empty(most), *around)
        self._used = 0

    def add(self, voxels: Voxels) -> None:
        """Put the voxels of a case behind those that are there."""
        mine = self._voxels
        if voxels.logits.dtype == torch.float64 != mine.logits.dtype:
            self._voxels = mine = mine._replace(logits=mine.logits.double(), weight=mine.weight.double())
        part = slice(self._used, self._used + voxels.labels.numel())
        for own, its in zip(mine, voxels, strict=True):
            if own is not None and its is not None:
                own[..., part] = its
        if self._used and mine.context is not None and part.stop > self._used:
            _same_known(mine.context[:, 0], mine.context[:, self._used])
        self._used = part.stop

    def content(self) -> Voxels:
        """Return all of them."""
        return self._voxels.take(slice(self._used)).each(Tensor.contiguous)


def _same_known(first: Tensor, other: Tensor) -> None:
    """Refuse a case of whose surroundings more or less is known than of the first one's."""
    for name, had, has in zip(CONTEXTS, (~first.isnan()).tolist(), (~other.isnan()).tolist(), strict=True):
        if had != has:
            raise InputError(
                f"its {name} is {'known' if has else 'not known'}, but that of the first case is "
                f"{'known' if had else 'not known'}. "
                "Give all cases the same members and the same number of axes, or leave this one out."
            )
