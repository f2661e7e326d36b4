"""What the members of an ensemble show about each other: one that is there twice, one that counts classes differently.

Both are properties of folders, not of cases, so a few cases are enough; of each, a digest of the scores is kept and a
table of which class of the first member meets which class of another on a grid of voxels. A member is renumbered by the
rule of :mod:`segcal.cases.suspicion`; if all others differ from the first, it is the first that does.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.cases.agreement import confusion
from segcal.cases.base import Cases
from segcal.cases.glance import GRID, MOST_CLASSES, digest_of, grid_of
from segcal.cases.misplaced import renumbering
from segcal.cases.suspicion import Suspicion, listed
from segcal.errors import InputError
from segcal.numerics import winner

FEW_CASES = 3


class Member(NamedTuple):
    """One member's scores of one case: their digest, and the winners of the first member by its own, ``(C, C)``."""

    digest: bytes
    table: np.ndarray | None


def look_at(digest: bytes, decision: Tensor, first: Tensor, num_classes: int) -> Member:
    """Keep what is needed of a member, given its winners and those of the first."""
    if num_classes > MOST_CLASSES or decision.shape != first.shape:
        return Member(digest, None)
    grid = grid_of(tuple(decision.shape), GRID)
    return Member(digest, confusion(first.cpu().numpy()[grid], decision.cpu().numpy()[grid], num_classes))


class Ensemble:
    """Collects what was seen of the members, case by case.

    Args:
        names: how the members are called.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._digests: list[tuple[bytes, ...]] = []
        self._tables: list[np.ndarray | None] = [None] * len(names)

    def add(self, members: Sequence[Member]) -> None:
        """Take the members of one case; a case that lacks some is not looked at."""
        if len(members) != len(self._names):
            return
        self._digests.append(tuple(member.digest for member in members))
        for number, (_, table) in enumerate(members):
            before = self._tables[number]
            self._tables[number] = before if table is None else table if before is None else before + table

    def found(self) -> list[Suspicion]:
        """Return what was seen."""
        return [*self._same(), *self._renumbered()]

    def _same(self) -> list[Suspicion]:
        pairs = [
            f"{self._names[one]} = {self._names[other]}"
            for one, other in combinations(range(len(self._names)), 2)
            if self._digests and all(digests[one] == digests[other] for digests in self._digests)
        ]
        text = f"members hold the same scores ({listed(pairs)}) and count several times. Leave the copies out."
        return [Suspicion(text)] if pairs else []

    def _renumbered(self) -> list[Suspicion]:
        numbers = {
            number: renumbering(table) for number, table in enumerate(self._tables) if table is not None and number > 0
        }
        odd = [number for number, found in numbers.items() if found]
        if not odd:
            return []
        pairs = ", ".join(f"{label} for {other}" for label, other in numbers[odd[0]].items())
        several = len(numbers) > 1 and len(odd) == len(numbers)
        which = self._names[0] if several else listed([self._names[number] for number in odd])
        against = "all others" if several else self._names[0]
        text = f"{which} has its classes in another order than {against} ({pairs}). Export all members alike."
        return [Suspicion(text)]


def look_at_members(cases: Cases) -> list[Suspicion]:
    """Compare the members in a few cases, spread evenly."""
    names = cases.member_names
    if len(names) < 2:
        return []
    ensemble = Ensemble(names)
    for index in sorted({int(place) for place in np.linspace(0, len(cases) - 1, FEW_CASES)}):
        members: list[Member] = []
        first: Tensor | None = None
        try:
            for logits in cases.member_logits(cases.ids[index]):
                decision = winner(logits, axis=0)
                first = decision if first is None else first
                members.append(look_at(digest_of(logits), decision, first, cases.num_classes))
        except InputError:  # it fails again, and is named, when it is read for the fit
            continue
        ensemble.add(members)
    return ensemble.found()
