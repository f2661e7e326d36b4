"""The number of calibration cases that is needed (Fig. 5).

The cases that are not for the test are split anew. n are for calibration (with groups, as many as whole groups fill),
the others for validation. The test cases stay the same, so that every number is compared with that of the protocol's
own n case by case, with paired intervals. Pooled metrics (ACE) have one value per repeat: the change is mean [min, max]
over repeats.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from segcal.benchmark.protocol import Pipeline, Protocol
from segcal.benchmark.results import Results, UnitResult
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.tasks import Task
from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn
from segcal.report.table import Cell, Column, Table
from segcal.studies.study import FOLDER, Setting, Study, band_figure, drawn_of, interval_cell, per_task
from segcal.summary import Bootstrap, Estimate, Interval, difference, estimate, over_repeats

NAME = "calibration_size"
# The paper's subset, and the calibrators that this package would take first.
CALIBRATORS = ("ts", "ms", "ms_c", "lts", "cdc", "cms_ap", "conic")
POOLING = "mean_logits"
TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
SHARES = (0.05, 0.25, 0.5, 0.75, 0.99)


class SizePoint(Struct):
    """A metric with `n` calibration cases, and its change against the usual number of them."""

    n: int
    value: Estimate
    change: Interval


class SizedTask(Struct):
    """The usual number of calibration cases, all numbers, and by pipeline and metric one point for each."""

    reference: int
    sizes: list[int]
    pipelines: dict[str, dict[str, list[SizePoint]]]


class CalibrationSizeData(Struct):
    """By task, the points."""

    tasks: dict[str, SizedTask]


def _size(setting: Setting, task: Task) -> SizedTask | None:
    """Fit again with fewer and with more calibration cases, and compare."""
    wanted, division = setting.protocol.study_options.size_tasks, setting.protocol.division(task)
    asked = wanted is None or task.name in wanted
    if not asked or division.cal + division.val < 2 or not any(map(_has_part, setting.pipelines(task.name))):
        return None
    by_size = {division.cal: setting.results}
    for size, protocol, folder in size_runs(setting.protocol, task, setting.results.folder):
        by_size[size] = run_benchmark(protocol, folder)
    return compare_sizes(task.name, by_size, division.cal, setting.summary.bootstrap)


def size_runs(protocol: Protocol, task: Task, folder: Path) -> Iterator[tuple[int, Protocol, Path]]:
    """Yield what the study runs for a task: so many calibration cases, the protocol, and the folder of its results."""
    division = protocol.division(task)
    pool = division.cal + division.val
    cases = protocol.open(task, POOLING).cases
    groups = Counter(cases.groups.get(case_id, case_id) for case_id in cases.ids)
    least = max(groups.values())  # so that a whole group fits, whichever is drawn
    wanted = protocol.study_options.sizes or tuple(round(share * pool) for share in SHARES)
    for size in sorted({min(max(size, least), pool - 1) for size in wanted} - {division.cal}):
        alone = replace(task, split=replace(division, fitted=size), test_on=())
        pipelines = tuple(filter(_has_part, protocol.pipelines))
        own = replace(protocol, tasks=(alone,), pipelines=pipelines, notes=())
        yield size, own, folder / FOLDER / NAME / task.name / f"n_{size}"


def _has_part(pipeline: Pipeline) -> bool:
    return pipeline.pooling == POOLING and pipeline.calibrator in CALIBRATORS


def compare_sizes(task: str, by_size: Mapping[int, Results], reference: int, bootstrap: Bootstrap) -> SizedTask:
    """Compare the results of a task with each number of calibration cases to those with the usual one."""
    listed = (each for each in by_size[reference].units if each.unit.task == task and _has_part(each.unit.pipeline))
    curves = {}
    for title in dict.fromkeys(each.header.title for each in listed):
        units = {size: results.repeats(task, title) for size, results in sorted(by_size.items())}
        if all(units.values()):
            tested = [unit.header.test for unit in units[reference]]
            for size, own in units.items():
                if [unit.header.test for unit in own] != tested:
                    raise InputError(
                        f"task {task!r} has other test cases with {size} calibration cases than with {reference}, but "
                        "they must be the same. Delete the folder of this study and run it again."
                    )
            curves[title] = _curves(units, reference, bootstrap)
    return SizedTask(reference, sorted(by_size), curves)


def _curves(
    units: Mapping[int, Sequence[UnitResult]], reference: int, bootstrap: Bootstrap
) -> dict[str, list[SizePoint]]:
    """Return, by metric, one point per size: its value and its change against the reference, with intervals."""
    usual = units[reference]
    draws = bootstrap.draws([unit.groups for unit in usual])
    curves: dict[str, list[SizePoint]] = {}
    for name in (name for name in TITLES if name in usual[0].rows[0].metrics):
        metric = METRICS[name]
        for size, own in units.items():
            if metric.pooled:
                first, second = ([metric(unit.total.shown) for unit in each] for each in (usual, own))
                gaps = [None if a is None or b is None else b - a for a, b in zip(first, second, strict=True)]
                point = SizePoint(size, over_repeats(second), over_repeats(gaps))
            else:
                before, after = ([unit.column(name) for unit in each] for each in (usual, own))
                change = difference(before, after, draws, metric.better, bootstrap.level)
                point = SizePoint(size, estimate(after, draws, bootstrap.level, metric.bounds), change)
            curves.setdefault(name, []).append(point)
    return curves


def _tables(data: CalibrationSizeData) -> dict[str, Table]:
    tables = {}
    for task, found in data.tasks.items():
        columns = [Column(f"n = {size}", digits=4) for size in found.sizes]
        rows = {
            metric: {title: curves[metric] for title, curves in found.pipelines.items() if metric in curves}
            for metric in TITLES
        }
        note = f"Change against n = {found.reference}, with 95 % intervals of paired differences (ACE: min, max)."
        title = f"Number of calibration cases: {task}"
        tables[f"figure5_size_{task}"] = Table.of(title, columns, rows, _changes, note)
    return tables


def _changes(points: Sequence[SizePoint]) -> list[Cell]:
    return [interval_cell(point.change) for point in points]


def _figures(data: CalibrationSizeData, section: TaskSection) -> Iterator[Drawn]:
    """Yield the change of each metric against the usual number of calibration cases."""
    if found := data.tasks.get(section.task):
        panels = {
            title: {
                name: {at.n: at.change for at in curves.get(metric, ())} for name, curves in found.pipelines.items()
            }
            for metric, title in TITLES.items()
            if any(metric in curves for curves in found.pipelines.values())
        }
        text = "Change against the number used here; bands are 95 % intervals. Near zero, more cases would not help."
        size, change = (3.2 * len(panels), 3.2), f"change against n = {found.reference}"
        draw = partial(band_figure, panels, size, "calibration cases", change, zero=True)
        yield drawn_of(section, "size", "How many calibration cases are needed", text, draw)


STUDY = Study(
    "Fig. 5: fewer and more calibration cases", "", "fits and tests up to seven pipelines again, for five sizes", False,
    per_task(_size, CalibrationSizeData, "no task has calibrators of this study and two cases beside the test"),
    CalibrationSizeData, _tables, _figures,
)  # fmt: skip
