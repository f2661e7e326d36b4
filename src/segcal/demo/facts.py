"""The numbers that the verdict on a task is written from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segcal.benchmark.counting import FlipBands
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import UnitResult
from segcal.benchmark.studies import Setting
from segcal.demo.plan import MATRIX, UNCALIBRATED
from segcal.metrics import METRICS
from segcal.statistics import CaseTables
from segcal.statistics.reliability import Curve
from segcal.statistics.table import total_of
from segcal.summary import Difference, Draws, difference, over_repeats

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


def find_facts(setting: Setting, task: str, chosen: Pipeline, test_on: str = "") -> Facts:
    """Collect the facts of a task, or of another one that its calibrators were tested on."""
    before = setting.results.repeats(task, UNCALIBRATED.title, test_on)
    after = setting.results.repeats(task, chosen.title, test_on)
    matrix = setting.results.repeats(task, MATRIX.title, test_on)
    tables = total_of({str(unit.unit.repeat): unit.tables for unit in before})
    spread = [number for unit in before for number in unit.numbers("free_energy_std") if number is not None]
    ace = METRICS["ace"]
    return Facts(
        task=test_on or task,
        cases=sum(len(unit.rows) for unit in before),
        everywhere=_honesty(tables.reliability[15]["all"]),
        boundary=_boundary(tables),
        offset=float(np.mean(spread)) if spread else None,
        chosen=chosen,
        change=compare_units(before, after, setting),
        ace=tuple(over_repeats([ace(unit.tables) for unit in units]).value for units in (before, after)),  # type: ignore[arg-type]
        chosen_flips=count_flips(after),
        matrix_flips=count_flips(matrix) if matrix else None,
        matrix_change=compare_units(before, matrix, setting) if matrix else {},
    )


def compare_units(before: Sequence[UnitResult], after: Sequence[UnitResult], setting: Setting) -> dict[str, Change]:
    """Return the paired change of each metric, with the intervals of the benchmark's bootstrap."""
    bootstrap = setting.protocol.bootstrap
    draws = Draws([len(unit.rows) for unit in before], bootstrap.replicates, bootstrap.seed)
    found = {}
    for name in COMPARED:
        first, second = (
            [np.array([np.nan if value is None else value for value in unit.numbers(name)]) for unit in units]
            for units in (before, after)
        )
        values = [
            setting.numbers(u[0].unit.task, u[0].header["title"], u[0].unit.test_on)[name]["value"]
            for u in (before, after)
        ]
        gap = difference(first, second, draws, METRICS[name].better, bootstrap.level)
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
