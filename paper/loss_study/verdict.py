"""The answer of the study to the question whether a loss that calibrates still helps once a calibrator is fitted.

Every sentence is computed. A loss is better than CE + Dice on a task where the 95 % interval of the paired difference,
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
# If this part of the clear differences is left, or less, calibration has taken over what the losses did.
MOST = 0.5
FEWEST_SEEDS = 2


class Counts(NamedTuple):
    """Pairs of loss and task that are clearly better, not clearly different, and clearly worse."""

    better: int = 0
    unclear: int = 0
    worse: int = 0

    @property
    def clear(self) -> int:
        """Return how many differ clearly."""
        return self.better + self.worse


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


def verdict(results: Results, metric: str = "nll") -> str:
    """Return what follows for one metric: one point of a list per stage."""
    if max((len(results.seeds(Key(task, BASELINE))) for task in results.tasks), default=0) < FEWEST_SEEDS:
        return "One network of each kind is no basis for a conclusion: train more seeds."
    points = []
    for stage, words in STAGES.items():
        signs = {pipeline: compared(results, metric, stage, pipeline) for pipeline in PIPELINES}
        if signs["none"]:
            said = [_differences(METRIC_TITLES[metric], signs), _left(signs), _calibration(results, metric, stage)]
            points.append(f"- **{words}.** {' '.join(text for text in said if text)}")
    return "\n".join(points)


def _differences(metric: str, signs: dict[str, dict[tuple[str, str], int]]) -> str:
    counts = {pipeline: counted(own) for pipeline, own in signs.items() if own}
    first = counts.pop("none")
    text = (
        f"As trained, {first.clear} of {sum(first)} pairs of loss and task differ clearly from CE + Dice in {metric} "
        f"({first.better} lower, {first.worse} higher)"
    )
    after = [f"{own.clear} with {name} ({own.better}, {own.worse})" for name, own in counts.items()]
    return f"{text}; calibrated alike, {_listed(after)}." if after else f"{text}."


def _left(signs: dict[str, dict[tuple[str, str], int]]) -> str:
    """Say which calibrators take most of the differences away, and which losses stay better with all of them."""
    after = {name: own for name, own in signs.items() if name != "none" and own}
    if not after:
        return ""
    before = counted(signs["none"]).clear
    if not before:
        return "So there is nothing that a calibrator could take over."
    most = [name for name, own in after.items() if counted(own).clear <= MOST * before]
    if len(most) == len(after):
        text = "So a calibrator fitted after training does most of what a loss does"
    elif most:
        text = f"So {_listed(most)} {'does' if len(most) == 1 else 'do'} most of what a loss does, the others less"
    else:
        text = "So the choice of a loss still matters after calibration"
    kept = sorted(set.intersection(*({pair for pair, value in own.items() if value == -1} for own in after.values())))
    if not kept:
        return f"{text}, and no loss stays better with every calibrator."
    return f"{text}; better with every calibrator: {_listed([f'{TITLES[loss]} on {task}' for task, loss in kept])}."


def _calibration(results: Results, metric: str, stage: str) -> str:
    counts = {pipeline: calibrated(results, metric, stage, pipeline) for pipeline in PIPELINES[1:]}
    parts = [
        f"{name} in {own.better} of {sum(own)} (raises it in {own.worse})" for name, own in counts.items() if sum(own)
    ]
    return f"Calibration itself clearly lowers it: {_listed(parts)}." if parts else ""


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
