"""Cases of regions: how they are declared, and one region of them as cases of two classes, off and on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from segcal.cases.base import Case, Cases
from segcal.cases.formats.base import FormatFacts
from segcal.cases.kept import Kept
from segcal.errors import InputError
from segcal.regions import Regions
from segcal.types import Kind

Declared = Mapping[str, int | Sequence[int]] | None


def declare_regions(
    regions: Declared, order: Sequence[int] | None, kind: Kind, ignore: int | None, names: Sequence[str] | None = None
) -> Regions | None:
    """Return the regions that a user declares, if any; each output is then a sigmoid.

    Names of classes, if they are given, are those of the labels: then it is known which labels there are.
    """
    if regions is None:
        if order is not None:
            raise InputError("regions_class_order is given without regions, but it is about them. Pass regions= too.")
        return None
    if kind == "probs":
        raise InputError(
            "regions are declared and kind is 'probs', but classes of a softmax exclude each other and have no "
            "regions. Pass kind='sigmoid' for a probability per region, kind='logits' for its logit, or leave regions "
            "out."
        )
    return Regions.declared(regions, order, ignore, None if names is None else range(len(names)))


def folder_regions(
    regions: Declared,
    order: Sequence[int] | None,
    kind: Kind,
    ignore: int | None,
    names: Sequence[str] | None,
    facts: FormatFacts,
) -> Regions | None:
    """Return the regions that a folder says it has, or those that are declared of one that says nothing."""
    told = facts.regions
    if regions is not None and told is not None and Regions.declared(regions, order or told.order, ignore) == told:
        return told  # the same, said twice
    if regions is not None and facts.num_classes is not None:
        known = "classes of a softmax, which exclude each other" if told is None else "other regions"
        raise InputError(
            f"regions are declared, but the folder itself says that its outputs are {known}. Leave regions out."
        )
    return declare_regions(regions, order, kind, ignore, names) if told is None else told


class RegionView(Cases):
    """One region of a collection, as cases of two classes with the logits 0 and z; made by :func:`region_view`."""

    def __init__(self, whole: Cases, regions: Regions, number: int) -> None:
        name = regions.names[number]
        super().__init__(whole.ids, 2, whole.kind, whole.pooling, (f"not {name}", name), whole.groups, whole.sites)
        self._whole, self._all, self._number = whole, regions, number
        self.origin, self.wants_disagreement = whole.origin, whole.wants_disagreement
        self.grouping = whole.grouping
        self.aspect, self.raters = f"region {name}", whole.raters

    def read(self, case_id: str) -> Case:
        """Read one case of all regions, and return this one."""
        return region_case(self._whole.checked(case_id), self._all, self._number)

    def pooled(self, how: str | None) -> Self:
        """Return the same cases with one of the poolings."""
        return type(self)(self._whole.pooled(how), self._all, self._number).subset(self.ids)

    @property
    def poolings(self) -> tuple[str | None, ...]:
        """The poolings among which a choice is free."""
        return self._whole.poolings

    @property
    def kept(self) -> Kept | None:  # type: ignore[override]
        """The cases kept for all regions."""
        return self._whole.kept

    def keeping(self, room: int = 0) -> Self:
        """Return the same cases, which keep what is read of all regions."""
        return type(self)(self._whole.keeping(room), self._all, self._number).subset(self.ids)

    def with_disagreement(self) -> Self:
        """Return the same cases that also say where their members disagree."""
        return type(self)(self._whole.with_disagreement(), self._all, self._number).subset(self.ids)

    @property
    def has_offset(self) -> bool:
        """A sigmoid has none."""
        return False

    def require_offset(self, calibrator: str, translation_invariant: bool) -> None:
        """Refuse a calibrator that needs the offset."""
        if not translation_invariant:
            raise InputError(
                f"calibrator {calibrator!r} depends on the offset of the logits, but a sigmoid has none. "
                "Choose a translation-invariant calibrator."
            )

    def member_logits(self, case_id: str) -> Iterator[Tensor]:
        """Yield the logits of one member after the other."""
        for member in self._whole.member_logits(case_id):
            yield two_classes(member[self._number])

    @property
    def member_names(self) -> tuple[str, ...]:
        """Names of the members."""
        return self._whole.member_names

    def identity(self, case_id: str) -> str:
        """Return what the whole case depends on, and which region this is."""
        return f"{self._whole.identity(case_id)} {self._number}"

    def folders(self) -> set[Path]:
        """Return the folders that cases are read from."""
        return self._whole.folders()

    def size_note(self, case_id: str) -> str:
        """Return the sizes of the case's files."""
        return f"{self._whole.size_note(case_id)} {self._all.labels[self._number]}"


def region_view(cases: Cases, number: int) -> RegionView:
    """Return one region of cases that have regions, as cases of two classes."""
    return RegionView(cases, regions_of(cases), number)


def regions_of(cases: Cases) -> Regions:
    """Return the regions of cases that have some."""
    assert cases.regions is not None
    return cases.regions


def region_case(case: Case, regions: Regions, number: int) -> Case:
    """Return one region of a case."""
    votes = None if case.votes is None else case.votes.region(regions, number)
    labels = None if case.labels is None else regions.truth(case.labels, number)
    return replace(
        case,
        logits=two_classes(case.logits[number]),
        labels=labels if votes is None else votes.labels(),
        votes=votes,
        kind_warning="",
        disagreement=None if case.disagreement is None else case.disagreement[number],
    )


def two_classes(logits: Tensor, axis: int = 0) -> Tensor:
    """Return the logits of off and on along a new axis.

    >>> two_classes(torch.tensor([3.0])).T
    tensor([[0., 3.]])
    """
    return torch.stack([torch.zeros_like(logits), logits], dim=axis)
