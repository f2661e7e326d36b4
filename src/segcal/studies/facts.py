"""The numbers that the verdict on a task is written from, read from the units of a benchmark."""

from collections.abc import Sequence

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import Results, UnitResult
from segcal.metrics import METRICS
from segcal.report.curves import BINS
from segcal.report.verdict import COMPARED, Change, Facts, FlipCount, Honesty
from segcal.statistics import CaseTables
from segcal.statistics.additive import total_of
from segcal.summary import Bootstrap, Difference, Summary, difference, over_repeats

UNCALIBRATED = Pipeline("mean_logits", "identity")
MATRIX = Pipeline("mean_logits", "ms")


def find_facts(results: Results, summary: Summary, task: str, chosen: Pipeline, test_on: str = "") -> Facts:
    """Collect the facts of a task, or of another one (`test_on`) that its calibrators were tested on.

    The chosen pipeline is judged against the same pooling without a calibrator.
    """
    before = results.repeats(task, Pipeline(chosen.pooling, "identity").title, test_on)
    after = results.repeats(task, chosen.title, test_on)
    matrix = results.repeats(task, MATRIX.title, test_on)
    matrix = matrix if len(matrix) == len(before) else []  # not finished
    tables, calibrated = total_tables(before), total_tables(after)
    spread = [number for unit in before for number in unit.numbers("free_energy_std") if number is not None]
    aces = [over_repeats([METRICS["ace"](unit.tables) for unit in units]).value for units in (before, after)]
    return Facts(
        task=test_on or task,
        calibrator=chosen.calibrator,
        title=chosen.make(2).title,
        keeps=chosen.preserves is not None,
        everywhere=Honesty.of(tables.reliability[BINS]["all"]),
        change=_compare_units(before, after, summary),
        flips=_count_flips(after),
        everywhere_after=Honesty.of(calibrated.reliability[BINS]["all"]),
        boundary=_boundary(tables),
        boundary_after=_boundary(calibrated),
        offset=float(np.mean(spread)) if spread else None,
        ace=(aces[0], aces[1]),
        matrix_flips=_count_flips(matrix) if matrix else None,
        matrix_change=_compare_units(before, matrix, summary) if matrix else {},
    )


def total_tables(units: Sequence[UnitResult]) -> CaseTables:
    """Return the tables of the test cases of all repeats together."""
    return total_of({str(unit.unit.repeat): unit.tables for unit in units})


def _compare_units(before: Sequence[UnitResult], after: Sequence[UnitResult], summary: Summary) -> dict[str, Change]:
    """Return the paired change of each metric, with the intervals of the benchmark's bootstrap."""
    first, second = (
        summary.numbers(units[0].unit.task, units[0].header.title, units[0].unit.test_on) for units in (before, after)
    )
    gaps = paired_differences(before, after, summary.bootstrap)
    return {name: Change(first[name].value, second[name].value, gap) for name, gap in gaps.items()}


def paired_differences(
    before: Sequence[UnitResult], after: Sequence[UnitResult], bootstrap: Bootstrap
) -> dict[str, Difference]:
    """Return the paired difference of each metric between units of the same cases."""
    draws = bootstrap.draws([len(unit.rows) for unit in after])
    found = {}
    for name in (each for each in COMPARED if each in after[0].rows[0].metrics):
        first, second = ([unit.column(name) for unit in units] for units in (before, after))
        found[name] = difference(first, second, draws, METRICS[name].better, bootstrap.level)
    return found


def _count_flips(units: Sequence[UnitResult]) -> FlipCount:
    """Return what was flipped in the test cases of all repeats."""
    counted = total_of({str(unit.unit.repeat): unit.flip_bands for unit in units})
    harmful, beneficial, neutral = (int(count) for count in counted.flips.sum(axis=0))
    total = harmful + beneficial + neutral
    near = int(counted.flips[0].sum()) / total if total else None
    return FlipCount(int(counted.voxels.sum()), (harmful, beneficial, neutral), near)


def _boundary(tables: CaseTables) -> Honesty | None:
    if tables.bands is None or not tables.bands.curves[BINS].count[0].any():
        return None
    return Honesty.of(tables.bands.curves[BINS][0])
