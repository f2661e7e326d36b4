r"""Expected Dice and volume of a structure with intervals, from how far they were off on labelled cases.

The sums of many cases are columns (:class:`SumTable`), and these follow for each case and class without labels:

- Expected Dice: :math:`2 \sum p m / (\sum m + \sum p)`, the soft Dice confidence (Borges et al., 2024,
  arXiv 2402.10665). An empty mask is right if the structure is not there. One voxel is added above and below, so its
  expected Dice is :math:`1 / (1 + \sum p)`, and 1 where nothing speaks for the structure.
- Expected IoU: :math:`D / (2 - D)` of it; precision: :math:`\sum p m / \sum m`; recall:
  :math:`\sum p m / \sum p`. Of an empty mask the precision is not defined, the recall is 0.
- Volume: :math:`\sum p`, times the size of a voxel; that of the mask is :math:`\sum m`.

With labels, Dice is that of the voxels that have one; an empty mask of an absent structure has Dice 1.

A number of a new case is its estimate e. Labelled cases i show its errors in units of a scale that is known without
labels. With :math:`r_i = |t_i - e_i| / s_i` and q the conformal quantile of r at the level
(:func:`segcal.trust.conformal.quantile`), the interval is :math:`e \pm q s`. Structures are taken apart, and nothing is
fitted, so the promise is exact whatever e and s are; good ones make it narrow:

- Dice: e is the expected Dice D, or the mean Dice A of the pairs of members if that is lower. A mask is rarely better
  than the agreement of its members. :math:`s = 1 - D A + 0.02`. Only cases whose mask is not empty count. Of an empty
  mask nothing is said: it is right or wrong as a whole, and the interval is 0 to 1.
- Volume: :math:`e = \sum p` and :math:`s = \sqrt{1 + \sum p (1 - p)}`, the spread of independent voxels; the quantile
  measures how much wider their dependence makes it. It does not go below 0.

If labelled cases were judged by calibrators of folds, e and s of the new case are those of the fold of i. The interval
is that of CV+ (:mod:`segcal.trust.conformal`). It goes from the largest number that enough of :math:`e_{k(i)} - r_i
s_{k(i)}` reach to the smallest that enough of :math:`e_{k(i)} + r_i s_{k(i)}` do not exceed.

Labelled cases also put what is estimated at :math:`e + s (t_i - e_i) / s_i`, each with its weight. The median of these
is the corrected estimate: e without the error that it usually has. Their share below tau is the chance of a Dice below
tau, half a group added for what was not seen. The interval stays that of e, which the correction has no part in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segcal.errors import InputError
from segcal.fitting.reference import ITSELF, OF_CASE, OF_CLASS, Reference, ReferenceCase, read_numbers
from segcal.trust.conformal import SLACK, count_draws, draws_needed, mean_over_draws, quantile, weights
from segcal.trust.sums import CaseSums, Floats, reference_case

SMALLEST = 0.02
TAU = 0.7


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
        return cls.of_kept([reference_case(each) for each in sums], len(sums[0].joint))

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


class Span(NamedTuple):
    """An estimate with its interval; infinite ends where the groups do not support the level."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Errors:
    """Errors of estimates of one kind: signed, in units of their scales, one per labelled case.

    `folds` are the indices of the calibrators that judged the cases, as :attr:`ReferenceCase.fold` has them; none where
    all were judged by the calibrator itself. Methods take an estimate and its scale by each of these calibrators, that
    by the calibrator itself last.
    """

    signed: Floats
    groups: tuple[str, ...]
    folds: tuple[int, ...] = ()

    @property
    def draws(self) -> int:
        """The number of groups."""
        return count_draws(self.groups)

    def supports(self, level: float) -> bool:
        """Return whether there are enough groups for a level."""
        return self.draws >= draws_needed(level)

    def span(self, value: ArrayLike, scale: ArrayLike, level: float, least: float, most: float = np.inf) -> Span:
        """Return the interval of an estimate, cut where no value can be."""
        middle, reach = _judged(value, self), np.abs(self.signed) * _judged(scale, self)
        low, high = -quantile(reach - middle, self.groups, level), quantile(reach + middle, self.groups, level)
        return Span(float(np.atleast_1d(value)[ITSELF]), max(low, least), min(high, most))

    def corrected(self, value: ArrayLike, scale: ArrayLike, least: float, most: float) -> float:
        """Return an estimate without the error that it usually has: the median of where labelled cases put it."""
        places = np.clip(self._places(value, scale), least, most)
        order, own = np.argsort(places, kind="stable"), weights(self.groups)
        reached = np.cumsum(own[order]) / own.sum()
        ends = (np.searchsorted(reached, 0.5 + sign * SLACK) for sign in (-1, 1))
        return float(np.mean([places[order][place] for place in ends]))

    def chance_below(self, value: ArrayLike, scale: ArrayLike, limit: float) -> float | None:
        """Return how often what is estimated lies below a limit; None without labelled cases."""
        if not self.draws:
            return None
        return chance_of(self._places(value, scale) < limit, self.groups)

    def _places(self, value: ArrayLike, scale: ArrayLike) -> Floats:
        return _judged(value, self) + _judged(scale, self) * self.signed


@dataclass(frozen=True)
class BadMasks:
    """The expected Dice of labelled masks that were bad."""

    values: Floats
    groups: tuple[str, ...]
    folds: tuple[int, ...] = ()

    def p_value(self, value: ArrayLike, level: float) -> float | None:
        """Return how often a bad mask has an expected Dice this high; None with too few groups for a level.

        If masks pass only where this is at most 1 - level, at most 1 - level of bad masks pass, on average over groups.
        """
        if count_draws(self.groups) < draws_needed(level):
            return None
        above = self.values >= _judged(value, self)
        return float(weights(self.groups)[above].sum() + 1 / (count_draws(self.groups) + 1))

    def review_limit(self, level: float) -> float | None:
        """Return the expected Dice up to which masks are reviewed, so that few bad ones pass; None where unknown."""
        enough = count_draws(self.groups) >= draws_needed(level)
        return quantile(self.values, self.groups, level) if enough else None


def _judged(values: ArrayLike, labelled: Errors | BadMasks) -> Floats:
    """Return a number of the new case for each labelled case: that by the calibrator that judged it."""
    every = np.atleast_1d(np.asarray(values, np.float64))
    return every[list(labelled.folds) or [ITSELF] * len(labelled.groups)]


def chance_of(found: NDArray[np.bool_], groups: Sequence[str]) -> float:
    """Return how often something was found, by groups, half a group added for what was not seen."""
    return float(weights(groups)[found].sum() + 0.5 / (count_draws(groups) + 1))


def expected_dice(table: SumTable) -> Floats:
    """Return the expected Dice ``(cases, classes)``, no higher than the members agree."""
    return np.fmin(table.expected_dice, np.where(table.empty, np.nan, table.agreement))


def dice_scale(table: SumTable) -> Floats:
    """Return the scale of its error."""
    agreement = np.where(np.isnan(table.agreement), 1.0, table.agreement)
    return 1 - table.expected_dice * agreement + SMALLEST


def volume_scale(table: SumTable) -> Floats:
    """Return the scale of the error of the expected volume, which is `prob`."""
    return np.sqrt(1 + table.spread)


def dice_errors(table: SumTable, number: int, folds: Sequence[int] = ()) -> Errors:
    """Return how far the expected Dice of a class was off in labelled cases with a mask of it."""
    own = np.flatnonzero(~table.empty[:, number])
    off = (table.dice - expected_dice(table)) / dice_scale(table)
    return Errors(off[own, number], *_named(table, own, folds))


def structure_dice(table: SumTable, number: int, level: float) -> Span:
    """Return the Dice of a class, with its interval, for who knows the labelled cases and nothing of the new one."""
    own = np.flatnonzero(~table.empty[:, number])
    truth, groups = table.dice[own, number], [table.groups[i] for i in own]
    middle = float(mean_over_draws(truth, groups)) if groups else 0.5
    reach = quantile(np.abs(truth - middle), groups, level)
    return Span(middle, max(middle - reach, 0.0), min(middle + reach, 1.0))


def volume_errors(table: SumTable, number: int, folds: Sequence[int] = ()) -> Errors:
    """Return how far the expected volume of a class was off in labelled cases."""
    off = (table.truth - table.prob) / volume_scale(table)
    return Errors(off[:, number], table.groups, tuple(folds))


def bad_masks(table: SumTable, number: int, tau: float, folds: Sequence[int] = ()) -> BadMasks:
    """Return the labelled masks of a class whose Dice was below tau; an empty one is not among them."""
    bad = np.flatnonzero(~table.empty[:, number] & (table.dice[:, number] < tau))
    return BadMasks(expected_dice(table)[bad, number], *_named(table, bad, folds))


def taus_of(tau: float | Mapping[str, float], titles: Sequence[str]) -> tuple[float, ...]:
    """Return the Dice below which a mask of each class is bad; classes that a mapping does not name have 0.7.

    >>> taus_of({"liver": 0.9}, ("background", "liver"))
    (0.7, 0.9)
    """
    given = tau if isinstance(tau, Mapping) else dict.fromkeys(titles, tau)
    for name, value in given.items():
        if name not in titles:
            raise InputError(f"tau names the structure {name!r}, but there are {', '.join(titles)}. Correct the name.")
        if not 0 < value < 1:
            of = f" of {name}" if isinstance(tau, Mapping) else ""
            raise InputError(
                f"tau{of} is {value:g}, but a Dice between 0 and 1 is needed. Use 0.7 if nothing else is known."
            )
    return tuple(float(given.get(title, TAU)) for title in titles)


def _named(table: SumTable, own: NDArray[np.intp], folds: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(table.groups[i] for i in own), tuple(folds[i] for i in own) if folds else ()


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
