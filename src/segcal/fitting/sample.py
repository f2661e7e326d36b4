r"""A sample of voxels in which hard ones are frequent, with weights that undo it.

Voxel i of n is drawn with probability

.. math:: \pi_i = \min\bigl(1,\ m\,(\tfrac12 \tfrac1n + \tfrac12 \tfrac{h_i}{\sum_j h_j})\bigr), \qquad
          h_i = 1 - \max_c S(z_i)_c,

by systematic sampling, and gets the weight :math:`1 / \pi_i`. Whether a voxel is drawn depends on its logits alone,
never on its label, so the weighted likelihood is an unbiased estimate of that of all voxels.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.surroundings import CONTEXTS
from segcal.errors import InputError
from segcal.numerics import at_once


class Voxels(NamedTuple):
    """A batch of labelled voxels.

    Attributes:
        logits: ``(C, n)`` float32 or float64.
        labels: ``(n,)`` int32.
        weight: ``(n,)``, of the type of the logits.
        context: ``(K, n)``, of :data:`segcal.calibrators.surroundings.CONTEXTS`, NaN where one is not known; None if it
            was not asked for.
        distance: ``(n,)``, from the boundary of the labels, infinite where there is none; None as for `context`.
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor
    context: Tensor | None = None
    distance: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Voxels":
        """Return voxels whose tensors were changed alike."""
        return Voxels(*(None if values is None else change(values) for values in self))  # type: ignore[arg-type]

    def take(self, index: Tensor | slice) -> "Voxels":
        """Return the voxels at these indices, or those that a mask keeps."""
        return self.each(lambda values: values[..., index])

    def steps(self, values: int, device: torch.device | None = None) -> Iterator["Voxels"]:
        """Yield parts of about so many values, on a device."""
        step = at_once(values, len(self.logits), device)
        for start in range(0, self.labels.numel(), step):
            yield self.take(slice(start, start + step)).each(lambda values: values.to(device))


def join(parts: list[Voxels]) -> Voxels:
    """Return the voxels of all parts; those of a single one are not copied."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    joined = (None if values[0] is None else torch.cat(values, dim=-1) for values in columns)
    return Voxels(*joined)  # type: ignore[arg-type]


def draw(voxels: Voxels, quota: int, rng: np.random.Generator) -> Voxels:
    """Draw about `quota` voxels, hard ones more often, with weights that undo it."""
    if voxels.labels.numel() <= quota:
        return voxels
    hard = hardness(voxels.logits).double()
    probability = inclusion(hard, quota, float(voxels.labels.numel()), float(hard.sum()))
    index = systematic(probability, rng)
    return voxels.take(index)._replace(weight=(1 / probability[index]).to(voxels.weight.dtype))


def hardness(logits: Tensor) -> Tensor:
    """Return one minus the confidence of logits ``(C, n)``, never quite zero."""
    return 1 - torch.softmax(logits, dim=0).amax(0) + 1e-9


def inclusion(hard: Tensor, quota: int, total: float, total_hard: float) -> Tensor:
    """Return the probability with which each voxel is drawn, given the sums over all voxels."""
    return (quota * (0.5 / total + 0.5 / total_hard * hard)).clamp(max=1.0)


def systematic(probability: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of voxels drawn with these probabilities."""
    # Voxel i is drawn when the running sum passes a whole number minus a common random offset.
    running, offset = probability.cumsum(0, dtype=torch.float64), float(rng.random())
    whole = torch.arange(1, int(running[-1] + offset) + 1, dtype=torch.float64) - offset
    # Rounding may let one step of size 1 pass two whole numbers.
    return torch.searchsorted(running, whole).clamp(max=len(running) - 1).unique_consecutive()


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
