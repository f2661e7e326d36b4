"""The number of calibration cases that is needed (Fig. 5).

The cases that are not for the test are divided anew into calibration and validation: n for calibration (with groups, as
many as whole groups fill), the others for validation. The test cases stay the same, so that every number is compared
with that of the protocol's own n case by case, with paired intervals. Pooled metrics (ACE) have one value per repeat:
the change is mean [min, max] over repeats.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import Results, UnitResult
from segcal.benchmark.run import run_benchmark
from segcal.benchmark.tasks import Division, Task
from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, new_figure, styled
from segcal.report.table import Column, Table
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import FOLDER, MOST_LINES, Outcome, Study, draw_band, interval_cell, task_groups
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
    """The data of the study, by task."""

    tasks: dict[str, SizedTask]


def run_calibration_size(setting: Setting) -> Outcome[CalibrationSizeData]:
    """Fit again with fewer and with more calibration cases, and compare."""
    wanted = setting.protocol.study_options.size_tasks
    found: dict[str, dict[int, Results]] = {}
    references = {}
    for task in (task for task in setting.tasks if wanted is None or task.name in wanted):
        division = setting.protocol.division(task)
        pool = division.cal + division.val
        if pool < 2 or not any(map(_has_part, setting.pipelines(task.name))):
            continue
        references[task.name] = division.cal
        found[task.name] = {division.cal: setting.results}
        for size, protocol, folder in size_runs(setting.protocol, task, setting.results.folder):
            setting.progress(f"{task.name} with {size} calibration cases")
            found[task.name][size] = run_benchmark(protocol, folder)
    if not found:
        raise NothingToStudyError("no task has calibrators of this study and two cases beside the test")
    return size_outcome(found, references, setting.summary.bootstrap)


def size_outcome(
    found: Mapping[str, Mapping[int, Results]], references: Mapping[str, int], bootstrap: Bootstrap
) -> Outcome[CalibrationSizeData]:
    """Return the outcome of results by task and number of calibration cases; `references` names the usual number."""
    tasks = {}
    for task, by_size in found.items():
        reference = references[task]
        units = {size: _units(results, task) for size, results in by_size.items()}
        curves = {}
        for title in units[reference]:
            if all(title in each for each in units.values()):
                same = {size: each[title] for size, each in units.items()}
                _check_tests(task, same, reference)
                curves[title] = _curves(same, reference, bootstrap)
        tasks[task] = SizedTask(reference, sorted(units), curves)
    return Outcome(
        CalibrationSizeData(tasks), {f"figure5_size_{task}": _table(task, one) for task, one in tasks.items()}
    )


def _curves(
    units: Mapping[int, Sequence[UnitResult]], reference: int, bootstrap: Bootstrap
) -> dict[str, list[SizePoint]]:
    """Return, by metric, one point per size: its value and its change against the reference, with intervals."""
    own = units[reference]
    draws = bootstrap.draws([unit.groups for unit in own])
    curves: dict[str, list[SizePoint]] = {}
    for name in TITLES:
        metric = METRICS[name]
        if name not in own[0].rows[0].metrics:
            continue
        for size in sorted(units):
            if metric.pooled:
                first, second = ([metric(unit.tables) for unit in units[n]] for n in (reference, size))
                gaps = [None if a is None or b is None else b - a for a, b in zip(first, second, strict=True)]
                point = SizePoint(size, over_repeats(second), over_repeats(gaps))
            else:
                before, after = ([unit.column(name) for unit in units[n]] for n in (reference, size))
                change = difference(before, after, draws, metric.better, bootstrap.level)
                point = SizePoint(size, estimate(after, draws, bootstrap.level, metric.bounds), change)
            curves.setdefault(name, []).append(point)
    return curves


def _table(task: str, data: SizedTask) -> Table:
    columns = tuple(Column(f"n = {size}", digits=4) for size in data.sizes)
    rows = {
        metric: {title: curves[metric] for title, curves in data.pipelines.items() if metric in curves}
        for metric in TITLES
    }
    groups = task_groups(rows, lambda points: [interval_cell(point.change) for point in points])
    note = f"Change against n = {data.reference}, with 95 % intervals of paired differences (ACE: min, max)."
    return Table(f"Number of calibration cases: {task}", "Pipeline", columns, groups, (note,))


class SizeRun(NamedTuple):
    """The protocol that fits with `size` calibration cases, and the folder of its results."""

    size: int
    protocol: Protocol
    folder: Path


def size_runs(protocol: Protocol, task: Task, folder: Path) -> Iterator[SizeRun]:
    """Yield what the study runs for a task of a protocol whose results are in a folder."""
    division = protocol.division(task)
    pipelines = tuple(filter(_has_part, protocol.pipelines))
    for size in _sizes(protocol, task, division):
        alone = replace(task, split=replace(division, fitted=size), test_on=())
        own = replace(protocol, tasks=(alone,), pipelines=pipelines, notes=())
        yield SizeRun(size, own, folder / FOLDER / NAME / task.name / f"n_{size}")


def _sizes(protocol: Protocol, task: Task, division: Division) -> list[int]:
    pool = division.cal + division.val
    wanted = protocol.study_options.sizes or tuple(round(share * pool) for share in SHARES)
    cases = protocol.open(task, POOLING).cases
    groups = Counter(cases.groups.get(case_id, case_id) for case_id in cases.ids)
    least = max(groups.values())  # so that a whole group fits, whichever is drawn
    return sorted({min(max(size, least), pool - 1) for size in wanted} - {division.cal})


def _has_part(pipeline: Pipeline) -> bool:
    return pipeline.pooling == POOLING and pipeline.calibrator in CALIBRATORS


def _units(results: Results, task: str) -> dict[str, list[UnitResult]]:
    found: dict[str, list[UnitResult]] = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        if (each.unit.task, each.unit.test_on) == (task, "") and _has_part(each.unit.pipeline):
            found.setdefault(each.header.title, []).append(each)
    return found


def _check_tests(task: str, units: Mapping[int, Sequence[UnitResult]], reference: int) -> None:
    own = [unit.header.test for unit in units[reference]]
    for size, each in units.items():
        if [unit.header.test for unit in each] != own:
            raise InputError(
                f"task {task!r} has other test cases with {size} calibration cases than with {reference}, but they "
                "must be the same. Delete the folder of this study and run it again."
            )


@styled()
def size_figure(found: SizedTask) -> Any:
    """Return the change of each metric against the usual number of calibration cases, with bands of its intervals."""
    metrics = [name for name in TITLES if any(name in curves for curves in found.pipelines.values())]
    figure, axes = new_figure(1, len(metrics), 3.2 * len(metrics), 3.2)
    for axis, metric in zip(axes[0], metrics, strict=True):
        axis.axhline(0, color="#8a939c", linewidth=1)
        for number, (title, curves) in enumerate(list(found.pipelines.items())[:MOST_LINES]):
            points = curves.get(metric, [])
            draw_band(axis, [each.n for each in points], [each.change for each in points], number, title)
        axis.set(title=TITLES[metric], xlabel="calibration cases")
    axes[0, 0].set_ylabel(f"change against n = {found.reference}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _figures(data: CalibrationSizeData, section: TaskSection) -> Iterator[Drawn]:
    task = section.task
    if task in data.tasks:
        text = "Change against the number used here; bands are 95 % intervals. Near zero, more cases would not help."
        draw = partial(size_figure, data.tasks[task])
        yield Drawn(f"size_{task}", task, "How many calibration cases are needed", text, draw)


STUDY = Study(
    "Fig. 5: fewer and more calibration cases", "", "fits and tests up to seven pipelines again, for five sizes", False,
    run_calibration_size, CalibrationSizeData, _figures,
)  # fmt: skip
