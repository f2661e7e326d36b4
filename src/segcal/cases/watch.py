"""Glances at all cases, judged together; kept are a glance per case, and one table of classes for all of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segcal.cases.glance import Glance
from segcal.cases.misplaced import misplaced
from segcal.cases.suspicion import ENOUGH_VOXELS, LISTED, NEAR_CHANCE, Suspicion, like_probabilities, listed


class Watch:
    """Collects glances at cases and judges them together.

    Args:
        num_classes: C.
    """

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
            *(misplaced(glances, self._table, self._num_classes) or _near_chance(glances)),
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


def _near_chance(glances: Sequence[Glance]) -> list[Suspicion]:
    compared = [glance.agreement for glance in glances if glance.agreement is not None and glance.agreement.voxels]
    voxels = sum(one.voxels for one in compared)
    if voxels < ENOUGH_VOXELS:
        return []
    right = sum(one.voxels * one.accuracy for one in compared) / voxels
    by_chance = sum(one.voxels * one.by_chance for one in compared) / voxels
    if by_chance >= 1 or (right - by_chance) / (1 - by_chance) >= NEAR_CHANCE:
        return []
    text = (
        f"the predicted class is right in {right:.1%} of the voxels, and labels strewn at random would be right in "
        f"{by_chance:.1%}: scores and labels hardly belong together. Look at one case of both."
    )
    return [Suspicion(text)]


def _nothing_counts(glances: Sequence[Glance]) -> list[Suspicion]:
    ids = tuple(glance.id for glance in glances if glance.counting == 0)
    return (
        [Suspicion("no voxel counts. Check the ignore label and the mask, or leave the case out.", ids)] if ids else []
    )


def _equal(groups: Sequence[Sequence[tuple[str, str]]]) -> str:
    names = [[case_id for case_id, _ in group] for group in groups]
    return listed([" = ".join([*same[:LISTED], "..."] if len(same) > LISTED else same) for same in names])
