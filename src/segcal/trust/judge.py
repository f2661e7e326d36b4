"""Reference cases, made ready to judge new ones; and the reasons for which a structure should be looked at.

Their order: nothing is known of the structure; the mask is empty though it seldom is; the expected Dice is too low; the
case is unlike the labelled ones; the members disagree more than they do on those. Which expected Dice is too low
follows from the labelled cases: where they have enough bad masks, the limit that lets at most 1 - level of such masks
pass (:func:`segcal.trust.estimates.review_limit`); else a mask passes if its interval ends above tau, so that at most
1 - level of all masks are bad and pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import Reference
from segcal.names import class_titles
from segcal.trust.atypical import rarity, statistics_of
from segcal.trust.conformal import check_level, count_draws, draws_needed, p_value
from segcal.trust.estimates import (
    Errors,
    dice_errors,
    dice_scale,
    expected_dice,
    review_limit,
    volume,
    volume_errors,
    volume_scale,
)
from segcal.trust.guarantees import Bounds, bounds_of
from segcal.trust.result import BoundRow, TrustRow
from segcal.trust.table import SumTable

# A case or a disagreement that is rarer than this among labelled cases is worth a look.
RARE = 0.05


@dataclass(frozen=True)
class Judge:
    """The reference, made ready to judge new cases.

    Attributes:
        reference: its table.
        titles: names of the classes.
        structures: the classes that are structures.
        level: of the intervals.
        tau: the Dice below which a mask is bad.
        dice: how far the expected Dice of each class was off.
        volume: the same of its volume.
        limits: the expected Dice of each class at or below which it is reviewed; None where that is not known.
        bounds: the thresholds of each class.
    """

    reference: SumTable
    titles: tuple[str, ...]
    structures: tuple[int, ...]
    level: float
    tau: float
    dice: tuple[Errors, ...]
    volume: tuple[Errors, ...]
    limits: tuple[float | None, ...]
    bounds: tuple[Bounds, ...]

    @classmethod
    def of(cls, fitted: Fitted, reference: Reference, level: float, tau: float, background: bool) -> "Judge":
        """Return the judge of a fitted calibrator; refuse a level that the reference cannot support."""
        check_level(level)
        if not 0 < tau < 1:
            raise InputError(f"tau is {tau:g}, but a Dice between 0 and 1 is needed. Use 0.7 if in doubt.")
        draws, needed = count_draws([each.group for each in reference.cases]), draws_needed(level)
        if draws < needed:
            possible = f"level={math.floor(100 * draws / (draws + 1)) / 100:g}"
            raise InputError(
                f"level is {level:g}, but the reference has {draws} draws (cases, or groups of cases) and {needed} are "
                f"needed. Use {possible} or less, or learn from more cases."
            )
        table = SumTable.read(reference)
        numbers = range(len(reference.curves))
        return cls(
            reference=table,
            titles=class_titles(fitted.class_names, len(numbers)),
            structures=tuple(numbers)[1 if background else 0 :],
            level=level,
            tau=tau,
            dice=tuple(dice_errors(table, number) for number in numbers),
            volume=tuple(volume_errors(table, number) for number in numbers),
            limits=tuple(review_limit(table, number, tau, level) for number in numbers),
            bounds=tuple(bounds_of(reference, 1 - level)),
        )

    @property
    def draws(self) -> int:
        """How many draws the reference has."""
        return count_draws(self.reference.groups)

    def rows(self, table: SumTable, units: Sequence[str]) -> list[TrustRow]:
        """Return one row per case and structure."""
        labelled, new = (statistics_of(each, self.titles, together=False).rows for each in (self.reference, table))
        found = []
        for place, unit in enumerate(units):
            one = table.rows([place])
            odd = rarity(labelled, self.reference.groups, new[place])
            found += [self._row(one, number, unit, odd) for number in self.structures]
        return found

    def bound_rows(self) -> list[BoundRow]:
        """Return the thresholds of each structure."""
        return [
            {
                "structure": self.titles[number],
                "outer_threshold": self.bounds[number].outer,
                "inner_threshold": self.bounds[number].inner,
                "reviewed_at_most": self.limits[number],
                "reference_draws": self.dice[number].draws,
            }
            for number in self.structures
        ]

    def _row(self, one: SumTable, number: int, unit: str, odd: float) -> TrustRow:
        empty, size = bool(one.empty[0, number]), float(one.size[0])
        value, scale = (float(each[0, number]) for each in (expected_dice(one), dice_scale(one)))
        errors = self.dice[number]
        dice = errors.span(value, scale, self.level, 0.0, 1.0)
        known = empty or errors.supports(self.level)
        low, high = (0.0, 1.0) if empty else (dice.low, dice.high)
        chance = None if empty else errors.chance_below(value, scale, self.tau)
        spread = float(volume_scale(one)[0, number])
        size_span = self.volume[number].span(float(volume(one)[0, number]), spread, self.level, 0.0, one.voxels[0])
        reasons = self._reasons(one, number, value, low if known else None, high if known else None, odd)
        return {
            "case": one.ids[0],
            "structure": self.titles[number],
            "expected_dice": value,
            "dice_low": low if known else None,
            "dice_high": high if known else None,
            "dice_below_tau": chance,
            "expected_iou": value / (2 - value),
            "expected_precision": _defined(one.precision[0, number]),
            "expected_recall": _defined(one.recall[0, number]),
            "volume": size_span.value * size,
            "volume_low": size_span.low * size,
            "volume_high": size_span.high * size,
            "mask_volume": float(one.mask[0, number]) * size,
            "unit": unit,
            "agreement": _defined(one.agreement[0, number]),
            "atypical_p": odd,
            "review": bool(reasons),
            "reason": "; ".join(reasons),
        }

    def _reasons(
        self, one: SumTable, number: int, value: float, low: float | None, high: float | None, odd: float
    ) -> list[str]:
        reasons, errors, limit = [], self.dice[number], self.limits[number]
        if low is None:
            needed = draws_needed(self.level)
            reasons.append(f"the structure is in {errors.draws} reference draws, {needed} are needed")
        elif one.empty[0, number]:
            share = float(self.reference.empty[:, number].mean())
            if share < 1 - self.level:
                reasons.append(f"empty, as in {100 * share:.0f} % of the reference cases")
        elif limit is not None and value <= limit:
            reasons.append(f"low expected Dice (at or below {limit:.2f})")
        elif high is not None and high < self.tau:
            reasons.append(f"low expected Dice (probably below {self.tau:g})")
        elif limit is None and low < self.tau:
            reasons.append(f"low expected Dice (may be below {self.tau:g})")
        if odd <= RARE:
            reasons.append(f"unlike the reference cases (p = {odd:.2g})")
        reasons += self._disagreement(one, number)
        return reasons

    def _disagreement(self, one: SumTable, number: int) -> list[str]:
        own, others = float(one.agreement[0, number]), self.reference.agreement[:, number]
        there = np.flatnonzero(~np.isnan(others))
        if math.isnan(own) or not len(there):
            return []
        p = p_value(1 - others[there], [self.reference.groups[i] for i in there], 1 - own)
        return [f"members disagree (p = {p:.2g})"] if p <= RARE else []


def _defined(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
