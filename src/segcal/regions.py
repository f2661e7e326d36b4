r"""Regions: overlapping unions of labels, each predicted by a sigmoid of its own.

Region r is on where its logit is above 0, so where :math:`p_r > 1/2`; at exactly 0 it is off. Take the two classes off
and on, with the logits :math:`(0, z_r)`. Their softmax is the sigmoid, the winner is this decision, and of equal ones
the lower index, off, wins. So all that holds for two classes holds for a region.

A label map is made as nnU-Net does it: one label per region (`order`), written where the region is on. A later region
overwrites an earlier one. One region lies in another if its labels are a subset: that is declared by the labels, and
never concluded from predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from segcal.errors import InputError
from segcal.names import clean
from segcal.types import IGNORED


@dataclass(frozen=True)
class Regions:
    """The regions of a model, in the order of its outputs.

    Attributes:
        names: what they are called.
        labels: the labels of each, ascending.
        order: the label that each writes into a label map.

    >>> regions = Regions.declared({"whole": [1, 2, 3], "core": [2, 3]})
    >>> regions.order, regions.nested
    ((1, 2), ((1, 0),))
    >>> str(regions)
    'whole=1+2+3,core=2+3'
    """

    names: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]

    @classmethod
    def declared(
        cls,
        regions: Mapping[str, int | Sequence[int]],
        order: Sequence[int] | None = None,
        ignore: int | None = None,
        known: Sequence[int] | None = None,
    ) -> Self:
        """Return regions as a user declares them.

        Args:
            regions: the labels of each region, by name.
            order: the label that each region writes; if None, the lowest of its labels that no later region has.
            ignore: the label that does not count, which is in no region.
            known: all labels that there are; None if that is not known.
        """
        if not isinstance(regions, Mapping) or not regions:
            raise InputError(
                f"regions is {regions!r}, but names with labels are needed. Pass regions={{'whole': [1, 2], 'core': "
                "[2]}, in the order of the model's outputs."
            )
        labels = tuple(_labels(name, given, ignore, known) for name, given in regions.items())
        names = tuple(clean(str(name)) for name in regions)
        for number, own in enumerate(labels):
            if own in labels[:number]:
                raise InputError(
                    f"regions has {names[labels.index(own)]!r} and {names[number]!r} with the same labels, but each "
                    "must have its own. Remove one."
                )
        return cls(names, labels, _usual(labels) if order is None else _order(names, labels, order))

    def __str__(self) -> str:
        written = (f"{name}={'+'.join(map(str, own))}" for name, own in zip(self.names, self.labels, strict=True))
        return ",".join(written)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def nested(self) -> tuple[tuple[int, int], ...]:
        """Pairs (inner, outer) of regions that lie in each other; what an outer one lies in comes before it."""
        by_size = sorted(range(len(self)), key=lambda number: -len(self.labels[number]))
        sets = [frozenset(own) for own in self.labels]
        return tuple((inner, outer) for inner in by_size for outer in by_size if sets[inner] < sets[outer])

    def truth(self, labels: Tensor, number: int) -> Tensor:
        """Return the labels of one region: 1 where it is, 0 where it is not, :data:`IGNORED` as it was."""
        inside = torch.isin(labels, torch.tensor(self.labels[number], dtype=labels.dtype))
        return torch.where(labels == IGNORED, labels, inside.to(labels.dtype))

    def truths(self, labels: Tensor) -> Tensor:
        """Return the labels of all regions, ``(regions, *space)``."""
        return torch.stack([self.truth(labels, number) for number in range(len(self))])

    def last_on(self, on: Tensor) -> Tensor:
        """Return the number, from 1, of the last region that is on in the masks ``(regions, *space)``; 0 for none."""
        found = torch.zeros(on.shape[1:], dtype=torch.int64)
        for number, mask in enumerate(on):
            found[mask.bool()] = number + 1
        return found

    def label_map(self, on: Tensor) -> Tensor:
        """Return the label map ``(*space)`` of the masks ``(regions, *space)``."""
        return torch.tensor([0, *self.order])[self.last_on(on)]

    def last_true(self, labels: Tensor | None) -> Tensor | None:
        """Return the same of what labels say; :data:`IGNORED` as it was."""
        if labels is None:
            return None
        return torch.where(labels == IGNORED, labels, self.last_on(self.truths(labels) == 1))

    def violations(self, values: Tensor) -> int:
        """Return at how many voxels an inner region is above an outer one, all pairs of ``(regions, *space)``."""
        return sum(int((values[inner] > values[outer]).sum()) for inner, outer in self.nested)

    def to_plain(self) -> dict[str, object]:
        """Return the arguments that :meth:`declared` takes."""
        return {"regions": dict(zip(self.names, map(list, self.labels), strict=True)), "order": list(self.order)}


def _labels(name: str, given: int | Sequence[int], ignore: int | None, known: Sequence[int] | None) -> tuple[int, ...]:
    found = [given] if isinstance(given, int) else given
    usable = isinstance(found, list | tuple) and len(found) > 0
    if not usable or not all(isinstance(label, int) and not isinstance(label, bool) for label in found):
        raise InputError(f"region {name!r} is {given!r}, but a list of labels is needed. Write for example [1, 2].")
    own = tuple(sorted({int(label) for label in found}))
    if own[0] < 1 or ignore in own:
        bad, why = (own[0], "0 is where no region is") if own[0] < 1 else (ignore, "it does not count")
        raise InputError(f"region {name!r} has the label {bad}, but {why}. Leave it out.")
    unknown = [label for label in own if known is not None and label not in known]
    if unknown:
        raise InputError(
            f"region {name!r} has the label {unknown[0]}, but the labels are {', '.join(map(str, known or ()))}. "
            "Correct the region."
        )
    return own


def _usual(labels: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return what each region alone shows: its lowest label that no later region has, or else its lowest."""
    later = [set().union(*labels[number + 1 :]) for number in range(len(labels))]
    return tuple(min(set(own) - rest or set(own)) for own, rest in zip(labels, later, strict=True))


def _order(names: Sequence[str], labels: Sequence[tuple[int, ...]], order: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(order, Sequence) or len(order) != len(labels):
        raise InputError(
            f"regions_class_order is {order!r}, but one label per region is needed, {len(labels)} in all. "
            "Give them in the order of the regions."
        )
    for name, own, label in zip(names, labels, order, strict=True):
        if label not in own:
            raise InputError(
                f"regions_class_order has the label {label} for region {name!r}, but it has the labels "
                f"{', '.join(map(str, own))}. Give one label of each region, in the order of the regions."
            )
    for number, own in enumerate(labels):
        for before in range(number):
            if set(labels[before]) < set(own):
                raise InputError(
                    f"regions_class_order writes {names[number]!r} after {names[before]!r}, but it contains it and "
                    "would hide it. List outer regions first."
                )
    return tuple(int(label) for label in order)
