"""Masks with a bound and lists of objects on labelled cases: what was promised, and what was found.

For every structure: the recall and precision that :func:`segcal.decide` promises at 90 %, beside their mean over cases.
Where the calibrator remembers objects, the false share of the lists of :func:`segcal.objects` beside its bound. Cases
are read again for this, so that of many only the first ones are.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from numpy.typing import NDArray

from segcal.calibrators.per_region import PerRegion
from segcal.cases import Cases
from segcal.decisions import make_rule
from segcal.decisions.decide import promise_of
from segcal.decisions.masks import Decider
from segcal.errors import InputError
from segcal.fitting import Fitted
from segcal.trust.objects import Objects, objects
from segcal.types import IGNORED

RULES = ("recall=0.9", "precision=0.9")
MOST_CASES = 50


class BoundedRow(Struct):
    """A structure by a rule: the mean over `cases` that was `found`, and the size beside that of the preserved mask."""

    rule: str
    structure: str
    threshold: float | None
    promised: float | None
    found: float | None
    cases: int
    size: float | None
    note: str


class ListedRow(Struct):
    """The objects of a structure: how many, listed ones, and the mean over cases of the false share of a list.

    `expected` real ones and `missed` ones are means over cases, each beside what labels say.
    """

    structure: str
    objects: int
    listed: int
    false_share: float | None
    expected: float | None
    real: float
    missed: float
    missed_found: float


class DecidedSection(Struct):
    """The rows, and in words what is promised; `cases` of `of` were looked at."""

    cases: int
    of: int
    bounded: list[BoundedRow]
    listed: list[ListedRow]
    promises: list[str]


def decided_section(fitted: Fitted, cases: Cases, background: bool = True) -> DecidedSection | UnsetType:
    """Return the section of labelled cases; none for regions, several raters, or a calibrator that knows too few."""
    if fitted.reference is None or isinstance(fitted.calibrator, PerRegion) or cases.raters is not None:
        return UNSET
    seen = cases.subset(sorted(cases.ids)[:MOST_CASES])
    bounded: list[BoundedRow] = []
    listed: list[ListedRow] = []
    promises = []
    for rule in RULES:
        try:
            decider = Decider(fitted, make_rule(rule), background)
        except InputError:  # the labelled cases are too few for the level
            continue
        bounded += bounded_rows(decider, seen)
        promises.append(f"{rule}: {promise_of(fitted, decider)}")
    if fitted.objects is not None:
        try:
            found = objects(fitted, seen, ignore_pooling=True)
            listed, promises = listed_rows(found), [*promises, found.promise]
        except InputError:
            pass
    return DecidedSection(len(seen), len(cases), bounded, listed, promises) if promises else UNSET


def bounded_rows(decider: Decider, cases: Cases) -> list[BoundedRow]:
    """Return what the masks of a rule find of every structure; a case without it does not count for recall."""
    shares: list[list[float]] = [[] for _ in decider.structures]
    sizes: NDArray[np.int64] = np.zeros((2, len(shares)), np.int64)
    recall = decider.rule.losses == "missed"
    for case in cases.with_disagreement():
        assert case.labels is not None
        labels, decided = case.labels.numpy(), decider(case)
        assert decided.masks is not None
        counted = labels != IGNORED
        for place, number in enumerate(decider.structures):
            mask = decided.masks[place] != 0 if decider.overlapping else decided.masks == number
            hit = int((mask & (labels == number)).sum())
            whole = int((labels == number).sum() if recall else (mask & counted).sum())
            shares[place] += [hit / whole] if whole else [] if recall else [1.0]
            sizes[:, place] += decided.rows[place]["voxels"], decided.rows[place]["preserved_voxels"]
    return [
        BoundedRow(
            str(decider.rule), title, limit.threshold, limit.guaranteed, _mean(own), len(own),
            float(voxels / before) if before else None, limit.note,
        )
        for title, limit, own, voxels, before in zip(decider.titles, decider.limits, shares, *sizes, strict=True)
    ]  # fmt: skip


def listed_rows(found: Objects) -> list[ListedRow]:
    """Return the objects of every structure, with what labels say of them."""
    rows = []
    for one in found.structures:
        own = [row for row in found.rows if row.structure == one.structure]
        cases = [row for row in found.cases if row.structure == one.structure]
        wrong: dict[str, list[bool]] = {row.case: [] for row in cases}
        for row in own:
            if row.listed and row.real is not None:  # None: it touches what has no label
                wrong[row.case].append(not row.real)
        shares = [float(np.mean(each)) if each else 0.0 for each in wrong.values()]
        rows.append(
            ListedRow(
                structure=one.structure,
                objects=len(own),
                listed=sum(bool(row.listed) for row in own),
                false_share=None if one.listed_from is None else _mean(shares),
                expected=_mean([row.expected_real for row in cases if row.expected_real is not None]),
                real=sum(bool(row.real) for row in own) / len(cases),
                missed=float(np.mean([row.expected_missed for row in cases])),
                missed_found=float(np.mean([row.missed or 0 for row in cases])),
            )
        )
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
