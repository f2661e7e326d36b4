"""Profiles of all cases, judged together; and what the members of an ensemble show about each other.

Of the cases a profile each is kept, and one table of classes for all of them.

A member may be there twice, count classes differently or disagree with all others. That is a property of folders and
not of cases, so a few cases are enough. Of each, a digest of the scores and the agreement of members with each other
are kept. A table counts which class of the first member meets which class of another on a grid of voxels. If all others
differ from the first, it is the first that does.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.cases.base import Cases
from segcal.cases.profile import (
    FEWEST,
    GRID,
    MOST_CLASSES,
    SHIFT_GRID,
    Profile,
    agreement,
    confusion,
    digest_of,
    grid_of,
)
from segcal.cases.suspicion import (
    ENOUGH_VOXELS,
    FIT,
    GAIN,
    LISTED,
    NEAR_CHANCE,
    Suspicion,
    listed,
    misplaced,
    renumbering,
    wrong_kinds,
)
from segcal.errors import InputError

FEW_CASES = 3


class Watch:
    """Collects profiles of cases and judges them together."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._profiles: dict[tuple[str, str], Profile] = {}
        self._table: np.ndarray | None = None

    def add(self, profile: Profile, part: str = "") -> None:
        """Take one case, and the part of the data to which it belongs."""
        if profile.confusion is not None:
            self._table = profile.confusion if self._table is None else self._table + profile.confusion
        self._profiles[profile.id, part] = replace(profile, confusion=None)

    def found(self) -> list[Suspicion]:
        """Return what was seen, in a fixed order."""
        profiles = [self._profiles[key] for key in sorted(self._profiles)]
        return [
            *wrong_kinds({profile.id: profile.kind_warning for profile in profiles}),
            *(misplaced(profiles, self._table, self._num_classes) or near_chance(profiles)),
            *self._twice(),
            *_nothing_counts(profiles),
        ]

    def _twice(self) -> list[Suspicion]:
        alike: dict[bytes, list[tuple[str, str]]] = {}
        for key in sorted(self._profiles):
            alike.setdefault(self._profiles[key].digest, []).append(key)
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


def near_chance(profiles: Sequence[Profile]) -> list[Suspicion]:
    """Return the suspicion that scores and labels have nothing to do with each other."""
    compared = [profile.agreement for profile in profiles if profile.agreement is not None and profile.agreement.voxels]
    voxels = sum(one.voxels for one in compared)
    if voxels < ENOUGH_VOXELS:
        return []
    right = sum(one.voxels * one.accuracy for one in compared) / voxels
    by_chance = sum(one.voxels * one.by_chance for one in compared) / voxels
    if by_chance >= 1 or (right - by_chance) / (1 - by_chance) >= NEAR_CHANCE:
        return []
    text = (
        f"the predicted class is right in {right:.1%} of the voxels, and random labels would be right in "
        f"{by_chance:.1%}: scores and labels hardly belong together. Look at one case of both."
    )
    return [Suspicion(text)]


def _nothing_counts(profiles: Sequence[Profile]) -> list[Suspicion]:
    ids = tuple(profile.id for profile in profiles if profile.counting == 0)
    text = "no voxel counts. Check the ignore label and the mask, or leave the case out."
    return [Suspicion(text, ids)] if ids else []


def _equal(groups: Sequence[Sequence[tuple[str, str]]]) -> str:
    names = [[case_id for case_id, _ in group] for group in groups]
    return listed([" = ".join([*same[:LISTED], "..."] if len(same) > LISTED else same) for same in names])


class Member(NamedTuple):
    """One member's scores of one case: their digest, winners of the first member by its own, ``(C, C)``, and a few."""

    digest: bytes
    table: np.ndarray | None
    winners: np.ndarray | None = None  # on a coarse grid


def look_at(digest: bytes, decision: Tensor, first: Tensor, num_classes: int) -> Member:
    """Keep what is needed of a member, given its winners and those of the first."""
    if num_classes > MOST_CLASSES or decision.shape != first.shape:
        return Member(digest, None)
    grid, coarse = (grid_of(tuple(decision.shape), most) for most in (GRID, SHIFT_GRID))
    own = decision.cpu().numpy()
    table = confusion(first.cpu().numpy()[grid], own[grid], num_classes)
    return Member(digest, table, own[coarse].astype(np.int16))


class Ensemble:
    """Collects what was seen of the members, case by case."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._digests: list[tuple[bytes, ...]] = []
        self._tables: list[np.ndarray | None] = [None] * len(names)
        self._agreements: list[np.ndarray] = []  # of members with each other, a case each

    def add(self, members: Sequence[Member]) -> None:
        """Take the members of one case; a case that lacks some is not looked at."""
        if len(members) != len(self._names):
            return
        self._digests.append(tuple(member.digest for member in members))
        maps = [member.winners for member in members if member.winners is not None]
        if len(members) > 1 and len(maps) == len(members) and maps[0].size >= FEWEST:
            classes = 1 + max(int(each.max()) for each in maps)
            pairs = [[1.0 if a is b else agreement(a, b, classes).kappa for a in maps] for b in maps]
            self._agreements.append(np.array(pairs))
        for number, (_, table, _) in enumerate(members):
            before = self._tables[number]
            self._tables[number] = before if table is None else table if before is None else before + table

    def found(self) -> list[Suspicion]:
        """Return what was seen."""
        return [*self._same(), *(self._renumbered() or self._odd())]

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
        unlike = [number for number, found in numbers.items() if found]
        if not unlike:
            return []
        pairs = ", ".join(f"{label} for {other}" for label, other in numbers[unlike[0]].items())
        several = len(numbers) > 1 and len(unlike) == len(numbers)
        which = self._names[0] if several else listed([self._names[number] for number in unlike])
        against = "all others" if several else self._names[0]
        text = f"{which} has its classes in another order than {against} ({pairs}). Export all members alike."
        return [Suspicion(text)]

    def _odd(self) -> list[Suspicion]:
        """Return members that disagree with the others by more than these do with each other."""
        known = [each for each in self._agreements if np.isfinite(each).all()]
        if not known or len(self._names) < 2:
            return []
        mean = np.mean(known, axis=0)
        if len(mean) == 2:
            text = f"{self._names[0]} and {self._names[1]} hardly agree (agreement {mean[0, 1]:.2f}): one of the two "
            return [Suspicion(f"{text}does not belong here. Look at one case of both.")] if mean[0, 1] < FIT else []
        found = []
        for number, name in enumerate(self._names):
            rest = np.delete(np.delete(mean, number, 0), number, 1)
            own, among = np.delete(mean[number], number).mean(), rest[np.triu_indices(len(rest), 1)].mean()
            if among >= max(FIT, own + GAIN):
                text = f"{name} disagrees with the other members (agreement {own:.2f}, theirs among each other "
                found.append(
                    Suspicion(f"{text}{among:.2f}): it is broken, mirrored, shifted or of another task. Look at it.")
                )
        return found


def look_at_case(cases: Cases, case_id: str) -> tuple[Member, ...]:
    """Look at the members of one case, one after the other."""
    kept = None if cases.kept is None else cases.kept.members(case_id)
    if kept is not None and kept.digests:
        seen: Iterable[tuple[bytes, Tensor]] = zip(kept.digests, map(Tensor.long, kept.decided), strict=True)
    else:
        mask, logits = cases.decision.mask, cases.member_logits(case_id)
        seen = ((digest_of(each), cases.decision.map(mask(each))) for each in logits)
    members: list[Member] = []
    first: Tensor | None = None
    for digest, decided in seen:
        first = decided if first is None else first
        members.append(look_at(digest, decided, first, cases.decision.values))
    return tuple(members)


def compared(cases: Cases) -> list[str]:
    """Return the few cases in which members are compared, spread evenly."""
    places = np.linspace(0, len(cases) - 1, FEW_CASES) if len(cases.member_names) > 1 else ()
    return [cases.ids[index] for index in sorted({int(place) for place in places})]


@contextmanager
def reading_at_once(poolings: Sequence[Cases], suspect: bool) -> Iterator[None]:
    """Have what is kept of cases hold what is asked for next: all these poolings, and members to compare."""
    kept = poolings[0].kept
    if kept is None:
        yield
        return
    kept.rules = tuple(str(each.pooling) for each in poolings) if len(poolings) > 1 else ()
    kept.compared = frozenset(compared(poolings[0]) if suspect else ())
    try:
        yield
    finally:
        kept.rules = ()


def look_at_members(cases: Cases) -> list[Suspicion]:
    """Compare the members in a few cases."""
    ensemble = Ensemble(cases.member_names)
    for case_id in compared(cases):
        with suppress(InputError):  # it fails again, and is named, when it is read for the fit
            ensemble.add(look_at_case(cases, case_id))
    return ensemble.found()
