r"""Parts of the cases that differ, each to be held out once: what a calibrator is worth where it has not been.

Declared sites (:attr:`segcal.cases.Cases.sites`) are such parts; more than five are joined to five. Without them,
*clusters* are made of the groups by what the model predicts in them, which needs no labels: with :math:`\bar p_g` the
mean predicted class frequencies of group g, the groups are sorted along the direction in which
:math:`\sqrt{\bar p_g}` (Hellinger's distance) varies most, and cut into three parts of equal size, or fewer of at least
three groups. The parts at the ends then have class frequencies that the others have not seen.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from segcal.cases.base import Cases
from segcal.fitting.division import FOLD_VOXELS, Fold, by_case, folds_by, group_names, thinned
from segcal.fitting.request import FitData
from segcal.fitting.sample import Voxels

CLUSTERS = 3
# A part of fewer groups says nothing of its own.
LEAST_GROUPS = 3
MOST_PARTS = 5


class Sites(NamedTuple):
    """The parts: their names and cases; and whether they were declared, or found among the predictions."""

    parts: dict[str, tuple[str, ...]]
    declared: bool

    @property
    def errors(self) -> float:
        """Return how many standard errors are noise (:mod:`segcal.fitting.travel`)."""
        return 1.0 if self.declared else 2.0

    def groups(self, cases: Cases) -> dict[str, int]:
        """Return how many groups each part has."""
        return {name: len(set(group_names(cases, part))) for name, part in self.parts.items()}

    def folds(self, data: FitData, seed: int) -> list[Fold]:
        """Return the folds of data: each part held out once."""
        return list(folds_by(data.cases, data.source, self.parts.values(), seed))


def find_sites(data: FitData, seed: int = 0) -> Sites | None:
    """Return the parts of the calibration cases; None if they are too few groups to differ."""
    cases = data.cases
    declared = [cases.sites.get(case_id, "") for case_id in cases.ids]
    if len(set(declared)) > 1:
        return Sites(_collected(cases.ids, _joined(declared)), True)
    groups = group_names(cases, cases.ids)
    names = list(dict.fromkeys(groups))
    count = min(CLUSTERS, len(names) // LEAST_GROUPS)
    if count < 2:
        return None
    found = dict(by_case(thinned(data.source, FOLD_VOXELS, seed), composition))
    rows = []
    for name in names:
        own = [found[case_id] for case_id, group in zip(cases.ids, groups, strict=True) if group == name]
        rows.append(np.sqrt(np.mean(own, axis=0)))
    cut = np.array_split(_along_main_axis(np.array(rows)), count)
    cluster = {names[index]: f"cluster {number + 1}" for number, part in enumerate(cut) for index in part}
    return Sites(_collected(cases.ids, [cluster[group] for group in groups]), False)


def composition(case_id: str, batches: Iterable[Voxels]) -> np.ndarray:
    """Return the mean predicted class frequencies of the voxels of a case."""
    total, weight = np.zeros(1), 0.0
    for voxels in batches:
        total = total + (torch.softmax(voxels.logits.double(), 0) @ voxels.weight.double()).numpy()
        weight += float(voxels.weight.sum(dtype=torch.float64))
    return total / max(weight, 1e-300)


def _along_main_axis(rows: np.ndarray) -> np.ndarray:
    """Return the order of rows along the direction in which they vary most; equal ones as they come."""
    centred = rows - rows.mean(0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    axis = axis * np.sign(axis[np.abs(axis).argmax()])  # a direction has two signs
    return np.argsort(np.round(centred @ axis, 12), kind="stable")


def _joined(names: Sequence[str]) -> list[str]:
    """Return the part of each site: its own, or one of five that are about equally large."""
    sizes = {name: names.count(name) for name in dict.fromkeys(names)}
    if len(sizes) <= MOST_PARTS:
        return list(names)
    parts: list[list[str]] = [[] for _ in range(MOST_PARTS)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(parts, key=lambda part: sum(sizes[each] for each in part)).append(name)
    of = {name: " + ".join(part) for part in parts for name in part}
    return [of[name] for name in names]


def _collected(ids: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    parts: dict[str, list[str]] = {}
    for case_id, name in sorted(zip(ids, names, strict=True), key=lambda pair: pair[1]):
        parts.setdefault(name, []).append(case_id)
    return {name: tuple(own) for name, own in parts.items()}
