"""How many calibration cases are needed (Fig. 5).

The cases that are not for the test are divided anew into calibration and validation: n for calibration (with groups, as
many as whole groups fill), the others for validation. The test cases stay the same, so that every number is compared
with that of the protocol's own n case by case, with paired intervals. Pooled metrics (ACE) have one value a repeat: the
change is mean [min, max] over repeats.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import Results, UnitResult
from segcal.benchmark.run import run_benchmark
from segcal.studies.base import Study, estimate_cell
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.benchmark.tasks import Division, Task
from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.report.table import Column, Group, Row, Table
from segcal.summary import Draws, difference, estimate, over_repeats

NAME = "calibration_size"
# The paper's subset, and the calibrator that this package would take first.
CALIBRATORS = ("ts", "ms", "ms_c", "lts", "cdc", "cms_ap")
METRIC_NAMES = ("nll", "ece", "ba_ece", "ace")
SHARES = (0.05, 0.25, 0.5, 0.75, 0.99)


def run_calibration_size(setting: Setting) -> Study:
    """Fit again with fewer and with more calibration cases, and compare."""
    wanted = setting.options.size_tasks
    tasks = [task for task in setting.tasks if wanted is None or task.name in wanted]
    found: dict[str, dict[int, Results]] = {}
    references = {}
    for task in tasks:
        division = setting.protocol.division(task)
        pool = division.cal + division.val
        if pool < 2 or not _pipelines(setting, task):
            continue
        references[task.name] = division.cal
        found[task.name] = {division.cal: setting.results}
        for size in _sizes(setting, task, pool, division.cal):
            setting.progress(f"{task.name} with {size} calibration cases")
            found[task.name][size] = _run(setting, task, replace(division, fitted=size))
    if not found:
        raise NothingToStudyError("no task has calibrators of this study and two cases beside the test")
    return size_study(found, references, setting.summary["bootstrap"])


def size_study(
    found: Mapping[str, Mapping[int, Results]], references: Mapping[str, int], bootstrap: Mapping[str, Any]
) -> Study:
    """Return the study of results by task and number of calibration cases; `references` names the usual number."""
    data: dict[str, Any] = {}
    for task, by_size in found.items():
        units = {size: _units(results, task) for size, results in by_size.items()}
        own = units[references[task]]
        titles = [title for title in own if all(title in each for each in units.values())]
        curves = {}
        for title in titles:
            same = {size: each[title] for size, each in units.items()}
            _check_tests(task, same, references[task])
            curves[title] = _curve(same, references[task], bootstrap)
        data[task] = {"reference": references[task], "sizes": sorted(units), "pipelines": curves}
    return Study(NAME, {"tasks": data}, {f"figure5_size_{task}": _table(task, one) for task, one in data.items()})


def _curve(units: Mapping[int, Sequence[UnitResult]], reference: int, bootstrap: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by metric, one point a size: its value and its change against the reference, with intervals."""
    draws = Draws([len(unit.rows) for unit in units[reference]], bootstrap["replicates"], bootstrap["seed"])
    curves: dict[str, Any] = {}
    for name in METRIC_NAMES:
        metric = METRICS[name]
        if name not in units[reference][0].rows[0]["metrics"]:
            continue
        points = []
        for size in sorted(units):
            if metric.pooled:
                own, other = ([metric(unit.tables) for unit in units[n]] for n in (reference, size))
                gaps = [None if a is None or b is None else b - a for a, b in zip(own, other, strict=True)]
                value, change = asdict(over_repeats(other)), asdict(over_repeats(gaps))
            else:
                first, second = (_columns(units[n], name) for n in (reference, size))
                value = asdict(estimate(second, draws, bootstrap["level"]))
                change = asdict(difference(first, second, draws, metric.better, bootstrap["level"]))
            points.append({"n": size, "value": value, "change": change})
        curves[name] = points
    return curves


def _table(task: str, data: Mapping[str, Any]) -> Table:
    columns = tuple(Column(f"n = {size}", digits=4) for size in data["sizes"])
    groups = []
    for metric in METRIC_NAMES:
        rows = []
        for title, curves in data["pipelines"].items():
            changes = [point["change"] for point in curves.get(metric, [])]
            if changes:
                rows.append(Row(title, tuple(estimate_cell(one) for one in changes)))
        groups.append(Group(metric, tuple(rows)))
    note = f"Change against n = {data['reference']}, with 95 % intervals of paired differences (ACE: min, max)."
    return Table(f"Number of calibration cases: {task}", "Pipeline", columns, tuple(groups), (note,))


def _sizes(setting: Setting, task: Task, pool: int, reference: int) -> list[int]:
    wanted = setting.options.sizes or tuple(round(share * pool) for share in SHARES)
    cases = setting.open(task, "mean_logits").cases
    groups = Counter(cases.groups.get(case_id, case_id) for case_id in cases.ids)
    least = max(groups.values())  # so that a whole group fits, whichever is drawn
    return sorted({min(max(size, least), pool - 1) for size in wanted} - {reference})


def _pipelines(setting: Setting, task: Task) -> tuple[Pipeline, ...]:
    return tuple(each for each in setting.pipelines(task.name, "mean_logits") if each.calibrator in CALIBRATORS)


def _run(setting: Setting, task: Task, division: Division) -> Results:
    alone = replace(task, split=division, test_on=())
    protocol = replace(setting.protocol, tasks=(alone,), pipelines=_pipelines(setting, task), notes=())
    folder = setting.results.folder / "studies" / NAME / task.name / f"n_{division.fitted}"
    return run_benchmark(protocol, folder, setting.embedded)


def _units(results: Results, task: str) -> dict[str, list[UnitResult]]:
    found: dict[str, list[UnitResult]] = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        pipeline = each.unit.pipeline
        if (each.unit.task, each.unit.test_on, pipeline.pooling) == (task, "", "mean_logits"):
            found.setdefault(pipeline.title, []).append(each)
    return {title: units for title, units in found.items() if units[0].unit.pipeline.calibrator in CALIBRATORS}


def _check_tests(task: str, units: Mapping[int, Sequence[UnitResult]], reference: int) -> None:
    own = [unit.header["test"] for unit in units[reference]]
    for size, each in units.items():
        if [unit.header["test"] for unit in each] != own:
            raise InputError(
                f"task {task!r} has other test cases with {size} calibration cases than with {reference}, but they "
                "must be the same. Delete the folder of this study and run it again."
            )


def _columns(units: Sequence[UnitResult], metric: str) -> list[np.ndarray]:
    return [np.array([np.nan if value is None else value for value in unit.numbers(metric)], float) for unit in units]
