"""The answer of the study to the question whether a loss that calibrates still helps once a calibrator is fitted.

A loss is better than CE + Dice on a task where the 95 % interval of the paired difference,
both calibrated alike, lies below zero, and worse where it lies above; elsewhere there is no clear difference.
"""

from typing import NamedTuple

import numpy as np

from paper.loss_study.plan import MAIN
from paper.loss_study.results import Key, Results
from paper.loss_study.tables import BASELINE, METRIC_TITLES, PIPELINES, TITLES
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.summary import Difference

STAGES = {"clean": "On cases like those of training", "corrupted": "Under corruption"}


class Counts(NamedTuple):
    """Pairs of loss and task that are clearly better, not clearly different, and clearly worse."""

    better: int = 0
    unclear: int = 0
    worse: int = 0


def sign(found: Difference | None) -> int | None:
    """Return -1 where an interval lies below zero, 1 where it lies above, 0 elsewhere, None without one."""
    if found is None or found.low is None or found.high is None:
        return None
    return -1 if found.high < 0 else int(found.low > 0)


def compared(results: Results, metric: str, stage: str, pipeline: str) -> dict[tuple[str, str], int]:
    """Return how every loss stands against CE + Dice on every task, both calibrated alike."""
    signs = {
        (task, variant): sign(results.difference(Key(task, BASELINE), Key(task, variant), metric, stage, pipeline))
        for task in results.tasks
        for variant in MAIN
        if variant != BASELINE
    }
    return {pair: value for pair, value in signs.items() if value is not None}


def counted(signs: dict[tuple[str, str], int]) -> Counts:
    """Return how many are better, unclear and worse."""
    values = list(signs.values())
    return Counts(values.count(-1), values.count(0), values.count(1))


def calibrated(results: Results, metric: str, stage: str, pipeline: str) -> Counts:
    """Return for how many pairs of loss and task the calibration itself is clearly better than none."""
    keys = [Key(task, variant) for task in results.tasks for variant in MAIN]
    signs = {tuple(key[:2]): sign(results.change(key, metric, stage, pipeline)) for key in keys}
    return counted({pair: value for pair, value in signs.items() if value is not None})  # type: ignore[misc]


def spread(results: Results, metric: str, stage: str, pipeline: str, task: str) -> float | None:
    """Return how far the means of the losses lie apart, all calibrated alike."""
    means = [results.mean(Key(task, variant), metric, stage, pipeline) for variant in MAIN]
    found = [mean for mean in means if mean is not None]
    return max(found) - min(found) if found else None


def best_pair(results: Results, metric: str, stage: str, task: str) -> tuple[str, str, float] | None:
    """Return the loss and the calibration with the lowest mean, and that mean."""
    found = [
        (value, variant, pipeline)
        for variant in MAIN
        for pipeline in PIPELINES
        if (value := results.mean(Key(task, variant), metric, stage, pipeline)) is not None
    ]
    if not found:
        return None
    value, variant, pipeline = min(found)
    return variant, pipeline, value


def unchanged(results: Results, pipeline: str) -> tuple[int, int]:
    """Return how many networks a calibration left as they were, on every test case, and how many it was fitted to."""
    columns = [
        (results.column(key, "nll", seeds=[seed]), results.column(key, "nll", pipeline=pipeline, seeds=[seed]))
        for key in (Key(task, variant) for task in results.tasks for variant in MAIN)
        for seed in results.seeds(key)
    ]
    fitted = [(before[0], after[0]) for before, after in columns if after]
    return sum(bool(np.allclose(before, after, rtol=1e-5)) for before, after in fitted), len(fitted)


def spread_table(results: Results, metric: str) -> Table:
    """Return how far the losses lie apart, and which loss with which calibration is lowest."""
    groups = []
    for stage, words in STAGES.items():
        rows = []
        for task in results.tasks:
            pair = best_pair(results, metric, stage, task)
            if pair is not None:
                apart = [spread(results, metric, stage, pipeline, task) for pipeline in PIPELINES]
                rows.append(Row(task, (*map(Cell, apart), Cell(f"{TITLES[pair[0]]}, {pair[1]}"), Cell(pair[2]))))
        groups.append(Group(words, tuple(rows)))
    columns = (
        *(Column(name, "apart", 4) for name in PIPELINES),
        Column("lowest"),
        Column(METRIC_TITLES[metric], digits=4),
    )
    title = f"How far the eight losses lie apart in {METRIC_TITLES[metric]}, without and with calibration"
    return Table(title, "Task", columns, tuple(group for group in groups if group.rows))
