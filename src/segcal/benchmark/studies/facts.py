"""The numbers that the verdict on a task is written from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import FlipBands, Results, UnitResult
from segcal.benchmark.summaries import numbers_of
from segcal.metrics import METRICS
from segcal.statistics import CaseTables
from segcal.statistics.reliability import Curve
from segcal.statistics.table import total_of
from segcal.summary import Difference, Draws, difference, over_repeats

UNCALIBRATED = Pipeline("mean_logits", "identity")
MATRIX = Pipeline("mean_logits", "ms")
COMPARED = ("nll", "ece", "ba_ece", "dice")


@dataclass(frozen=True)
class Honesty:
    """Mean confidence and accuracy of some voxels."""

    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Change:
    """A metric before and after, and the paired difference."""

    before: float | None
    after: float | None
    difference: Difference


@dataclass(frozen=True)
class FlipCount:
    """What a calibrator flips.

    Attributes:
        voxels: that were judged.
        flips: harmful, beneficial and neutral ones.
        near: the share of the flips that are less than 3 voxels from a boundary; None without flips.
    """

    voxels: int
    flips: tuple[int, int, int]
    near: float | None

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.flips)


@dataclass(frozen=True)
class Facts:
    """What the verdict on a task is written from.

    Attributes:
        task: its name.
        cases: test cases, those of all repeats counted.
        everywhere: confidence and accuracy of all voxels before calibration.
        boundary: of those less than 3 voxels from a boundary of the labels.
        offset: mean over cases of the standard deviation of the free energy.
        chosen: the pipeline that would be taken by default.
        change: by metric, from uncalibrated to chosen.
        ace: of uncalibrated and chosen, mean over repeats.
        chosen_flips: what the chosen one flips.
        matrix_flips: what matrix scaling flips; None if it was not fitted.
        matrix_change: by metric, from uncalibrated to matrix scaling; empty if it was not fitted.
        everywhere_after: confidence and accuracy of all voxels after calibration.
        boundary_after: the same less than 3 voxels from a boundary.
    """

    task: str
    cases: int
    everywhere: Honesty
    boundary: Honesty | None
    offset: float | None
    chosen: Pipeline
    change: dict[str, Change]
    ace: tuple[float | None, float | None]
    chosen_flips: FlipCount
    matrix_flips: FlipCount | None
    matrix_change: dict[str, Change]
    everywhere_after: Honesty | None = None
    boundary_after: Honesty | None = None


def find_facts(results: Results, summary: Mapping[str, Any], task: str, chosen: Pipeline, test_on: str = "") -> Facts:
    """Collect the facts of a task, or of another one that its calibrators were tested on.

    Args:
        results: the units.
        summary: made from them.
        task: where calibrators were fitted.
        chosen: the pipeline that is judged, against the same pooling without a calibrator.
        test_on: where it is tested; "" for the same task.
    """
    before = results.repeats(task, Pipeline(chosen.pooling, "identity").title, test_on)
    after = results.repeats(task, chosen.title, test_on)
    matrix = results.repeats(task, MATRIX.title, test_on)
    matrix = matrix if len(matrix) == len(before) else []  # not finished
    tables, calibrated = (total_of({str(unit.unit.repeat): unit.tables for unit in units}) for units in (before, after))
    spread = [number for unit in before for number in unit.numbers("free_energy_std") if number is not None]
    ace = METRICS["ace"]
    return Facts(
        task=test_on or task,
        cases=sum(len(unit.rows) for unit in before),
        everywhere=_honesty(tables.reliability[15]["all"]),
        boundary=_boundary(tables),
        offset=float(np.mean(spread)) if spread else None,
        chosen=chosen,
        change=compare_units(before, after, summary),
        ace=tuple(over_repeats([ace(unit.tables) for unit in units]).value for units in (before, after)),  # type: ignore[arg-type]
        chosen_flips=count_flips(after),
        matrix_flips=count_flips(matrix) if matrix else None,
        matrix_change=compare_units(before, matrix, summary) if matrix else {},
        everywhere_after=_honesty(calibrated.reliability[15]["all"]),
        boundary_after=_boundary(calibrated),
    )


def compare_units(
    before: Sequence[UnitResult], after: Sequence[UnitResult], summary: Mapping[str, Any]
) -> dict[str, Change]:
    """Return the paired change of each metric, with the intervals of the benchmark's bootstrap."""
    bootstrap = summary["bootstrap"]
    draws = Draws([len(unit.rows) for unit in before], bootstrap["replicates"], bootstrap["seed"])
    found = {}
    for name in (each for each in COMPARED if each in summary["metrics"]):
        first, second = (
            [np.array([np.nan if value is None else value for value in unit.numbers(name)]) for unit in units]
            for units in (before, after)
        )
        values = [
            numbers_of(summary, u[0].unit.task, u[0].header["title"], u[0].unit.test_on)[name]["value"]
            for u in (before, after)
        ]
        gap = difference(first, second, draws, METRICS[name].better, bootstrap["level"])
        found[name] = Change(values[0], values[1], gap)
    return found


def count_flips(units: Sequence[UnitResult]) -> FlipCount:
    """Return what was flipped in the test cases of all repeats."""
    counted = total_of({str(unit.unit.repeat): FlipBands.from_plain(unit.total["flip_bands"]) for unit in units})
    harmful, beneficial, neutral = (int(count) for count in counted.flips.sum(axis=0))
    total = harmful + beneficial + neutral
    near = int(counted.flips[0].sum()) / total if total else None
    return FlipCount(int(counted.voxels.sum()), (harmful, beneficial, neutral), near)


def _boundary(tables: CaseTables) -> Honesty | None:
    if tables.bands is None or not tables.bands.curves[15].count[0].any():
        return None
    return _honesty(tables.bands.curves[15][0])


def _honesty(curve: Curve) -> Honesty:
    voxels = int(curve.count.sum())
    return Honesty(float(curve.confidence.sum()) / voxels, int(curve.right.sum()) / voxels)
