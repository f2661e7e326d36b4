"""Reference cases, made ready to judge new ones; and the reasons for which a structure should be looked at.

A mask passes only if all of these hold; what does not hold is a reason, and they stand in this order:

- enough labelled groups have a mask of the structure, and not all of those masks were bad (a Dice below tau);
- the chance of a bad mask that the row itself states is at most 1 - level;
- where enough labelled masks were bad, at most 1 - level of those have an expected Dice this high. So at most 1 - level
  of bad masks pass (:class:`segcal.trust.estimates.BadMasks`). Else the interval ends above tau, so that at most 1 -
  level of all masks are bad and pass;
- the case is not unlike the labelled ones, nor are its class frequencies, and the members disagree no more than on
  those.

An empty mask is right or wrong as a whole. It passes only if labelled groups with an empty mask of the structure show
that it is rarely wrong. With K of them, in a share m of which the structure was there, :math:`(K m + 1) / (K + 1)` must
be at most 1 - level. By conformal risk control, at most 1 - level of empty masks then pass where the structure is
there. This is an average over groups that have one.

What is no reason for a review, but should be known, stands behind the reasons: an interval that says nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import ITSELF, Reference
from segcal.names import class_titles
from segcal.trust.atypical import Compositions, rarity, size_columns, statistics_of
from segcal.trust.conformal import SLACK, check_level, count_draws, draws_needed, p_value, weights
from segcal.trust.estimates import (
    BadMasks,
    Errors,
    Floats,
    Span,
    SumTable,
    bad_masks,
    chance_of,
    dice_errors,
    dice_scale,
    expected_dice,
    structure_dice,
    taus_of,
    volume_errors,
    volume_scale,
)
from segcal.trust.guarantees import Bounds, bounds_of
from segcal.trust.result import BoundRow, TrustRow

# A case or a disagreement that is rarer than this among labelled cases is worth a look.
RARE = 0.05
# An interval of a Dice that is wider than this says nothing.
WIDE = 0.9
UNCORRECTED = "its expected Dice could not be corrected"


@dataclass(frozen=True)
class Judge:
    """The reference, made ready to judge new cases at a level; tuples have one entry per class.

    A mask whose Dice is below `tau` is bad. `dice` and `volume` are the errors of these estimates, and `alone` is the
    interval of the Dice without any knowledge of the case. `folds` names the calibrator that judged each case of the
    reference (none where it was the calibrator itself).
    """

    reference: SumTable
    titles: tuple[str, ...]
    structures: tuple[int, ...]
    level: float
    tau: tuple[float, ...]
    dice: tuple[Errors, ...]
    volume: tuple[Errors, ...]
    bad: tuple[BadMasks, ...]
    alone: tuple[Span, ...]
    bounds: tuple[Bounds, ...] = ()
    folds: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, fitted: Fitted, reference: Reference, level: float, tau: float | Mapping[str, float], background: bool
    ) -> "Judge":
        """Return the judge of a fitted calibrator; refuse a level that the reference cannot support."""
        check_level(level)
        draws, needed = count_draws([each.group for each in reference.cases]), draws_needed(level)
        if draws < needed:
            possible = f"level={math.floor(100 * draws / (draws + 1)) / 100:g}"
            raise InputError(
                f"level is {level:g}, but the reference has {draws} groups (or single cases) and {needed} are "
                f"needed. Use {possible} or less, or learn from more cases."
            )
        titles = class_titles(fitted.class_names, len(reference.curves))
        folds = tuple(each.fold for each in reference.cases) if reference.folds else ()
        found = cls.on(SumTable.read(reference), titles, level, tau, background, folds)
        return replace(found, bounds=tuple(bounds_of(reference, 1 - level)))

    @classmethod
    def on(
        cls,
        table: SumTable,
        titles: tuple[str, ...],
        level: float,
        tau: float | Mapping[str, float],
        background: bool = True,
        folds: tuple[int, ...] = (),
    ) -> "Judge":
        """Return the judge of a table of labelled cases, without bounds of masks."""
        numbers, taus = range(len(titles)), taus_of(tau, titles)
        return cls(
            reference=table,
            titles=titles,
            structures=tuple(numbers)[1 if background else 0 :],
            level=level,
            tau=taus,
            dice=tuple(dice_errors(table, number, folds) for number in numbers),
            volume=tuple(volume_errors(table, number, folds) for number in numbers),
            bad=tuple(bad_masks(table, number, taus[number], folds) for number in numbers),
            alone=tuple(structure_dice(table, number, level) for number in numbers),
            folds=folds,
        )

    @property
    def draws(self) -> int:
        """The number of groups of the reference."""
        return count_draws(self.reference.groups)

    @property
    def fewest(self) -> int:
        """The fewest groups that any interval rests on."""
        found = [self.dice[number].draws for number in self.structures if self.dice[number].supports(self.level)]
        return min([self.draws, *found])

    def rows(self, tables: Sequence[SumTable], unit: str) -> list[TrustRow]:
        """Return one row per case and structure, from the cases by each calibrator of `folds` and by itself last."""
        table = tables[ITSELF]
        labelled, new = (statistics_of(each, self.titles, together=False).rows for each in (self.reference, table))
        sizes, groups = size_columns(len(self.titles)), self.reference.groups
        seen, found = Compositions(np.exp(labelled[:, sizes]), groups), []
        for place in range(len(table.ids)):
            every = [each.rows([place]) for each in tables]
            atypical = rarity(labelled, groups, new[place])
            *others, own = seen.scores(np.exp(new[place, sizes]))
            apart = p_value(others, groups, own)
            found += [self._row(every, number, unit, atypical, apart) for number in self.structures]
        return found

    def bound_rows(self) -> list[BoundRow]:
        """Return the thresholds of each structure."""
        return [
            {
                "structure": self.titles[number],
                "outer_threshold": self.bounds[number].outer,
                "inner_threshold": self.bounds[number].inner,
                "reviewed_at_most": self.bad[number].review_limit(self.level),
                "reference_draws": self.dice[number].draws,
            }
            for number in self.structures
        ]

    def _row(self, every: Sequence[SumTable], number: int, unit: str, atypical: float, apart: float) -> TrustRow:
        one, size = every[ITSELF], float(every[ITSELF].size[0])
        values, scales, spreads = (
            np.array([each(table)[0, number] for table in every]) for each in (expected_dice, dice_scale, volume_scale)
        )
        sizes = [table.prob[0, number] for table in every]
        found = self._empty(one, number) if one.empty[0, number] else self._mask(values, scales, number)
        size_span = self.volume[number].span(sizes, spreads, self.level, 0.0, float(one.voxels[0]))
        reasons = found.reasons
        reasons += [f"unlike the reference cases (p = {atypical:.2g})"] if atypical <= RARE else []
        reasons += [f"class frequencies unlike those of the reference cases (p = {apart:.2g})"] if apart <= RARE else []
        reasons += self._disagreement(one, number)
        value = found.dice.value
        return {
            "case": one.ids[0],
            "structure": self.titles[number],
            "expected_dice": value,
            "dice_low": _defined(found.dice.low),
            "dice_high": _defined(found.dice.high),
            "dice_below_tau": found.chance,
            "tau": self.tau[number],
            "expected_iou": value / (2 - value),
            "expected_precision": _defined(one.precision[0, number]),
            "expected_recall": _defined(one.recall[0, number]),
            "volume": size_span.value * size,
            "volume_low": size_span.low * size,
            "volume_high": size_span.high * size,
            "mask_volume": float(one.mask[0, number]) * size,
            "unit": unit,
            "agreement": _defined(one.agreement[0, number]),
            "atypical_p": atypical,
            "review": bool(reasons),
            "reason": "; ".join([*reasons, *found.notes]),
            "corrected": found.corrected,
            "uncorrected_dice": float(values[ITSELF]),
        }

    def _mask(self, values: Floats, scales: Floats, number: int) -> "_DiceVerdict":
        """Judge a mask that is not empty."""
        errors, value = self.dice[number], float(values[ITSELF])
        chance = errors.chance_below(values, scales, self.tau[number])
        if not errors.supports(self.level):
            needed = draws_needed(self.level)
            why = f"the structure is in {errors.draws} reference groups, {needed} are needed"
            return _DiceVerdict(Span(value, math.nan, math.nan), chance, [why], [UNCORRECTED], False)
        span = errors.span(values, scales, self.level, 0.0, 1.0)
        better = min(max(errors.corrected(values, scales, 0.0, 1.0), span.low), span.high)
        dice = Span(better, span.low, span.high)
        reasons = self._low(values, dice, chance or 0.0, number)
        return _DiceVerdict(dice, chance, reasons, self._says_nothing(dice, number), True)

    def _low(self, values: Floats, dice: Span, chance: float, number: int) -> list[str]:
        tau = self.tau[number]
        if len(self.bad[number].values) == len(self.dice[number].signed):
            return [f"all {len(self.bad[number].values)} reference masks of it have a Dice below {tau:g}"]
        most, bad = 1 - self.level + SLACK, self.bad[number].p_value(values, self.level)
        if chance > most:
            return [f"low expected Dice (below {tau:g} with a chance of {100 * chance:.0f} %)"]
        if bad is not None and bad > most:
            return [f"low expected Dice (as high in {100 * bad:.0f} % of bad masks)"]
        if bad is None and dice.low < tau:
            return [f"low expected Dice (its interval begins at {dice.low:.2f}, below {tau:g})"]
        return []

    def _says_nothing(self, dice: Span, number: int) -> list[str]:
        """Say whether an interval is as wide as what is possible, or as one that knows the structure alone."""
        alone = self.alone[number]
        if dice.high - dice.low > WIDE:
            return [f"uninformative interval ({dice.low:.2f} to {dice.high:.2f})"]
        if dice.high - dice.low >= alone.high - alone.low:
            told = f"no narrower than {alone.low:.2f} to {alone.high:.2f}, that of all reference masks of it"
            return [f"uninformative interval ({told})"]
        return []

    def _empty(self, one: SumTable, number: int) -> "_DiceVerdict":
        """Judge an empty mask."""
        own = np.flatnonzero(self.reference.empty[:, number])
        groups, missed = [self.reference.groups[i] for i in own], self.reference.dice[own, number] < self.tau[number]
        draws, needed = count_draws(groups), draws_needed(self.level)
        dice = Span(float(expected_dice(one)[0, number]), 0.0, 1.0)
        chance = chance_of(missed, groups) if draws else None
        reasons = []
        if draws < needed:
            reasons = [
                f"empty, as in {draws} of the reference groups; {needed} are needed to know whether that is right"
            ]
        elif weights(groups)[missed].sum() + 1 / (draws + 1) > 1 - self.level + SLACK:
            share = weights(groups)[missed].sum() / weights(groups).sum()
            reasons = [f"empty, and the structure was there in {100 * share:.0f} % of {draws} such reference groups"]
        return _DiceVerdict(dice, chance, reasons, [], False)

    def _disagreement(self, one: SumTable, number: int) -> list[str]:
        own, others = float(one.agreement[0, number]), self.reference.agreement[:, number]
        there = np.flatnonzero(~np.isnan(others))
        if math.isnan(own) or not len(there):
            return []
        p = p_value(1 - others[there], [self.reference.groups[i] for i in there], 1 - own)
        return [f"members disagree (p = {p:.2g})"] if p <= RARE else []


class _DiceVerdict(NamedTuple):
    """The findings on the Dice of one mask: reasons to review it, and other remarks."""

    dice: Span
    chance: float | None
    reasons: list[str]
    notes: list[str]
    corrected: bool


def _defined(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
