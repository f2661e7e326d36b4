r"""The sums of many cases as columns, and what follows from them for each case and class without labels.

- Expected Dice: :math:`2 \sum p m / (\sum m + \sum p)`, the soft Dice confidence (Borges et al., 2024,
  arXiv 2402.10665). An empty mask is right if the structure is not there: one voxel is added above and below, so that
  its expected Dice is :math:`1 / (1 + \sum p)`, 1 where nothing speaks for the structure.
- Expected IoU: :math:`D / (2 - D)` of it; precision: :math:`\sum p m / \sum m`; recall:
  :math:`\sum p m / \sum p`. Of an empty mask the precision is not defined, the recall is 0.
- Volume: :math:`\sum p`, times the size of a voxel; that of the mask is :math:`\sum m`.

With labels, Dice is that of the voxels that have one; an empty mask of an absent structure has Dice 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from segcal.fitting.reference import OF_CASE, OF_CLASS, Reference, ReferenceCase, read_numbers
from segcal.trust.sums import CaseSums, reference_case

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SumTable:
    """Columns ``(cases,)`` and ``(cases, classes)`` of :class:`segcal.trust.sums.CaseSums`; NaN is not known."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    voxels: Floats
    size: Floats
    entropy: Floats
    disagreement: Floats
    mask: Floats
    prob: Floats
    hit: Floats
    spread: Floats
    edge: Floats
    edge_prob: Floats
    agreement: Floats
    truth: Floats
    found: Floats
    counted: Floats
    beside: Floats

    @classmethod
    def of(cls, sums: Sequence[CaseSums]) -> "SumTable":
        """Return the table of cases."""
        return cls.of_kept([reference_case(each) for each in sums], len(sums[0].mask))

    @classmethod
    def read(cls, reference: Reference) -> "SumTable":
        """Return the table of what a calibrator remembers."""
        return cls.of_kept(reference.cases, len(reference.curves)).in_unit(reference.unit)

    @classmethod
    def of_kept(cls, cases: Sequence[ReferenceCase], classes: int) -> "SumTable":
        """Return the table of what is kept of cases."""
        width = len(OF_CLASS) - (len(cases[0].numbers.split()) < len(OF_CASE) + classes * len(OF_CLASS))
        rows = np.stack([read_numbers(each.numbers, len(OF_CASE) + classes * width) for each in cases])
        alone, per_class = rows[:, : len(OF_CASE)], rows[:, len(OF_CASE) :].reshape(len(cases), classes, -1)
        columns = [*alone.T, *np.moveaxis(per_class, 2, 0)]
        columns += [np.full((len(cases), classes), np.nan)] * (len(OF_CLASS) - width)  # older ones lack the last
        return cls(tuple(each.id for each in cases), tuple(each.group for each in cases), *columns)

    def in_unit(self, unit: str) -> "SumTable":
        """Return the table with volumes in one unit, "ml" or voxels."""
        return self if unit == "ml" else replace(self, size=np.ones_like(self.size))

    def rows(self, chosen: Sequence[int] | NDArray[np.integer]) -> "SumTable":
        """Return some of the cases, in this order."""
        ids, groups = (tuple(column[i] for i in chosen) for column in (self.ids, self.groups))
        return SumTable(ids, groups, *(getattr(self, field.name)[chosen] for field in fields(self)[2:]))

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Where the mask of a class has no voxel."""
        return self.mask == 0

    @property
    def expected_dice(self) -> Floats:
        """Expected Dice."""
        return (2 * self.hit + self.empty) / (self.mask + self.prob + self.empty)

    @property
    def expected_iou(self) -> Floats:
        """Expected intersection over union."""
        return self.expected_dice / (2 - self.expected_dice)

    @property
    def precision(self) -> Floats:
        """Expected share of the mask that is right; NaN where it is empty."""
        return _share(self.hit, self.mask)

    @property
    def recall(self) -> Floats:
        """Expected share of the structure that is in the mask."""
        return _share(self.hit, self.prob)

    @property
    def dice(self) -> Floats:
        """Dice against the labels; NaN without labels."""
        absent = (self.counted + self.truth) == 0
        return (2 * self.found + absent) / (self.counted + self.truth + absent)

    @property
    def edge_confidence(self) -> Floats:
        """Mean probability where a mask touches another class; NaN where it touches none."""
        return _share(self.edge_prob, self.edge)

    @property
    def outside(self) -> Floats:
        """Probability outside the mask, as a share of all of it."""
        return _share(self.prob - self.hit, self.prob)


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
