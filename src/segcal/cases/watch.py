"""Glances at all cases, judged together; and what the members of an ensemble show about each other.

Of the cases a glance each is kept, and one table of classes for all of them.

That a member is there twice, or counts classes differently, is a property of folders and not of cases, so a few cases
are enough; of each, a digest of the scores is kept and a table of which class of the first member meets which class of
another on a grid of voxels. If all others differ from the first, it is the first that does.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.cases.base import Cases
from segcal.cases.glance import GRID, MOST_CLASSES, Glance, confusion, digest_of, grid_of
from segcal.cases.suspicion import LISTED, Suspicion, like_probabilities, listed, misplaced, near_chance, renumbering
from segcal.errors import InputError
from segcal.numerics import winner

FEW_CASES = 3


class Watch:
    """Collects glances at cases and judges them together."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._glances: dict[tuple[str, str], Glance] = {}
        self._table: np.ndarray | None = None

    def add(self, glance: Glance, part: str = "") -> None:
        """Take one case, and the part of the data to which it belongs."""
        if glance.confusion is not None:
            self._table = glance.confusion if self._table is None else self._table + glance.confusion
        self._glances[glance.id, part] = replace(glance, confusion=None)

    def found(self) -> list[Suspicion]:
        """Return what was seen, in a fixed order."""
        glances = [self._glances[key] for key in sorted(self._glances)]
        return [
            *like_probabilities([glance.id for glance in glances if glance.like_probs]),
            *(misplaced(glances, self._table, self._num_classes) or near_chance(glances)),
            *self._twice(),
            *_nothing_counts(glances),
        ]

    def _twice(self) -> list[Suspicion]:
        alike: dict[bytes, list[tuple[str, str]]] = {}
        for key in sorted(self._glances):
            alike.setdefault(self._glances[key].digest, []).append(key)
        groups = [same for same in alike.values() if len(same) > 1]
        across = [same for same in groups if len({part for _, part in same}) > 1]
        within = [same for same in groups if same not in across]
        found = []
        if across:
            text = f"the same scores are in calibration and in validation ({_equal(across)}), so what is learned is "
            found.append(Suspicion(text + "judged on itself. Remove one of each, or declare both as one group."))
        if within:
            text = f"the same scores have several names ({_equal(within)}) and count several times. Remove the copies."
            found.append(Suspicion(text))
        return found


def _nothing_counts(glances: Sequence[Glance]) -> list[Suspicion]:
    ids = tuple(glance.id for glance in glances if glance.counting == 0)
    text = "no voxel counts. Check the ignore label and the mask, or leave the case out."
    return [Suspicion(text, ids)] if ids else []


def _equal(groups: Sequence[Sequence[tuple[str, str]]]) -> str:
    names = [[case_id for case_id, _ in group] for group in groups]
    return listed([" = ".join([*same[:LISTED], "..."] if len(same) > LISTED else same) for same in names])


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
    """Collects what was seen of the members, case by case."""

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


def look_at_case(cases: Cases, case_id: str) -> tuple[Member, ...]:
    """Look at the members of one case, one after the other."""
    members: list[Member] = []
    first: Tensor | None = None
    for logits in cases.member_logits(case_id):
        decision = winner(logits, axis=0)
        first = decision if first is None else first
        members.append(look_at(digest_of(logits), decision, first, cases.num_classes))
    return tuple(members)


def look_at_members(cases: Cases) -> list[Suspicion]:
    """Compare the members in a few cases, spread evenly."""
    ensemble = Ensemble(cases.member_names)
    places = np.linspace(0, len(cases) - 1, FEW_CASES) if len(cases.member_names) > 1 else ()
    for index in sorted({int(place) for place in places}):
        with suppress(InputError):  # it fails again, and is named, when it is read for the fit
            ensemble.add(look_at_case(cases, cases.ids[index]))
    return ensemble.found()
