"""Voxels in bins of confidence: diagrams of chosen pipelines (Fig. 8), and other numbers of bins (Fig. 6).

The benchmark counts every case once, with all numbers of bins at the same time; these studies only read.

*Reliability*, for each task: the first network alone, the uncalibrated pooling, and the calibrated pipeline with the
lowest ACE. It also has the one with the lowest ACE among those that keep the order of the classes. The choice is made
on the test cases, as in the paper: it shows what is possible, and is not how to choose a calibrator.

*Binning*: ECE is the mean over cases and repeats with its bootstrap interval, ACE the mean over repeats [min, max]. For
every number of bins the pipelines are ranked. The result is the number of pairs of pipelines that swap against the
numbers of bins of the tables: 50 for ECE, 15 for ACE.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from operator import ne

from msgspec import Struct, to_builtins

from segcal.benchmark.protocol import Pipeline
from segcal.report.document import BINS, TaskSection
from segcal.report.figures import CurveData, Drawn, reliability_figure, reliability_panel
from segcal.report.table import Cell, Column, Table
from segcal.statistics.reliability import Curve
from segcal.studies.study import (
    NothingToStudyError,
    Setting,
    Study,
    band_figure,
    compared_first,
    drawn_of,
    interval_cell,
)
from segcal.summary import Estimate, Summary

# By metric and number of bins, the name in the summary.
NAMES: dict[str, dict[int, str]] = {
    "ece": {20: "ece_20", 30: "ece_30", 40: "ece_40", 50: "ece"},
    "ace": {15: "ace", 20: "ace_20", 30: "ace_30", 40: "ace_40"},
}
# What the tables use.
REFERENCE = {"ece": 50, "ace": 15}
# Of a pipeline, by metric and number of bins.
Numbers = dict[str, dict[str, Estimate]]
RULE = (
    "Lowest ACE on the test cases, mean over repeats, among calibrated pipelines; for 'best_order' among those that "
    "promise to keep the order of all classes. Of equal ones the first in the protocol's order."
)
ROLES = {
    "single": "first network alone",
    "uncalibrated": "uncalibrated pooling",
    "best": "best ACE",
    "best_order": "best ACE that keeps the order",
}


class BinnedTask(Struct):
    """The numbers of a task by pipeline, and how many pairs stand in another order than with the usual bins."""

    pipelines: dict[str, Numbers]
    changed_pairs: dict[str, dict[str, int]]


class BinningData(Struct):
    """By task, the numbers."""

    tasks: dict[str, BinnedTask]
    reference_bins: dict[str, int]


def summary_binning(summary: Summary) -> BinningData:
    """Read the numbers of all pipelines from the summary of a benchmark, which is all that the study needs."""
    tasks: dict[str, dict[str, Numbers]] = {}
    for row in summary.results:
        if not row.test_on and all(name in row.metrics for names in NAMES.values() for name in names.values()):
            tasks.setdefault(row.task, {})[row.pipeline] = {
                metric: {str(bins): row.metrics[name] for bins, name in names.items()}
                for metric, names in NAMES.items()
            }
    if not tasks:
        raise NothingToStudyError("the benchmark has no ece and ace among its metrics")
    return BinningData({task: BinnedTask(own, changed_pairs(own)) for task, own in tasks.items()}, REFERENCE)


def changed_pairs(pipelines: Mapping[str, Numbers]) -> dict[str, dict[str, int]]:
    """Return how many pairs of pipelines stand in another order than with the reference number of bins."""

    def orders(metric: str, bins: int) -> list[bool | None]:
        values = [numbers[metric][str(bins)].value for numbers in pipelines.values()]
        return [None if a is None or b is None else a > b for a, b in combinations(values, 2)]

    return {
        metric: {str(bins): sum(map(ne, orders(metric, bins), orders(metric, REFERENCE[metric]))) for bins in names}
        for metric, names in NAMES.items()
    }


def binning_tables(data: BinningData) -> dict[str, Table]:
    """Return the table, with a note on the pairs that change places in each task."""
    columns = [Column(f"{bins} bins", metric.upper(), better="lower") for metric, by in NAMES.items() for bins in by]
    tasks, notes = {task: one.pipelines for task, one in data.tasks.items()}, []
    for task, one in data.tasks.items():
        count, (ece, ace) = len(one.pipelines), (max(one.changed_pairs[metric].values()) for metric in NAMES)
        pairs = f"{task}: of {count * (count - 1) // 2} pairs of pipelines"
        notes.append(f"{pairs}, at most {ece} change places in ECE (against 50 bins) and {ace} in ACE (against 15).")

    def cells(own: Numbers) -> list[Cell]:
        return [interval_cell(one) for metric in NAMES for one in own[metric].values()]

    table = Table.of("Sensitivity of ECE and ACE to binning", columns, tasks, cells, *notes, apart=True)
    return {"figure6_binning": table}


def _binning_figures(data: BinningData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        shown = compared_first(section, found.pipelines)
        panels = {
            metric.upper(): {
                title: {int(bins): one for bins, one in numbers[metric].items()} for title, numbers in shown.items()
            }
            for metric in NAMES
        }
        text = "The error depends on how finely confidence is divided; what matters is that the lines keep their order."
        draw = partial(band_figure, panels, (9, 3.4), "number of bins", ylim=(0, None))
        yield drawn_of(section, "binning", "Does the number of bins matter?", text, draw)


class BinnedCurve(Struct):
    """Voxels, accuracy and mean confidence of each bin (None in empty ones) and of all."""

    count: list[int]
    accuracy: list[float | None]
    confidence: list[float | None]
    mean_accuracy: float
    mean_confidence: float


class ChosenCurves(Struct):
    """The pipeline of a role, with the curve of all voxels of all repeats, and that of each repeat."""

    pipeline: str
    preserves: str | None
    ace: Estimate
    curve: BinnedCurve
    repeats: list[BinnedCurve]


class ReliabilityData(Struct):
    """By task and role, the curves."""

    bins: int
    rule: str
    tasks: dict[str, dict[str, ChosenCurves]]


def _run_reliability(setting: Setting) -> ReliabilityData:
    """Choose the pipelines of each task and return their curves."""
    tasks: dict[str, dict[str, ChosenCurves]] = {}
    for task in (task.name for task in setting.tasks):
        tasks[task] = own = {}
        for role, pipeline in choose_pipelines(setting, task).items():
            units = setting.results.repeats(task, pipeline.title)
            curves = [unit.total.shown.reliability[BINS]["all"] for unit in units]
            total, *apart = map(_binned, (sum(curves[1:], curves[0]), *curves))
            ace = setting.summary.numbers(task, pipeline.title)["ace"]
            own[role] = ChosenCurves(pipeline.title, pipeline.preserves, ace, total, apart)
    if not any("best" in found for found in tasks.values()):
        raise NothingToStudyError("no calibrated pipeline has an ACE")
    return ReliabilityData(BINS, RULE, tasks)


def choose_pipelines(setting: Setting, task: str) -> dict[str, Pipeline]:
    """Return the pipelines of a task's diagram by their role; roles that nothing can fill are left out."""
    known = {each: setting.summary.numbers(task, each.title).get("ace") for each in setting.pipelines(task)}
    aces = {each: number.value for each, number in known.items() if number is not None and number.value is not None}
    calibrated = [each for each in aces if each.calibrator != "identity"]
    ordered = [each for each in calibrated if each.preserves == "order"]
    best, best_order = (min(some, key=lambda each: aces[each], default=None) for some in (calibrated, ordered))
    plain = {each.pooling: each for each in aces if each.calibrator == "identity"}
    pooling = best.pooling if best is not None else "mean_logits"
    chosen = (plain.get("single"), plain.get(pooling), best, best_order)
    return {role: pipeline for role, pipeline in zip(ROLES, chosen, strict=True) if pipeline is not None}


def _binned(curve: Curve) -> BinnedCurve:
    share, total = curve.count.clip(1), curve.count.sum()
    accuracy, confidence = (
        [float(value) if there else None for value, there in zip(sums / share, curve.count > 0, strict=True)]
        for sums in (curve.right, curve.confidence)
    )
    right, sure = (float(sums.sum() / total) for sums in (curve.right, curve.confidence))
    return BinnedCurve(curve.count.tolist(), accuracy, confidence, right, sure)


def _reliability_tables(data: ReliabilityData) -> dict[str, Table]:
    columns = (Column("pipeline"), Column("ACE", better=None), Column("confidence"), Column("accuracy"))
    tasks = {name: {ROLES[role]: one for role, one in found.items()} for name, found in data.tasks.items()}

    def cells(one: ChosenCurves) -> tuple[Cell, ...]:
        means = (one.curve.mean_confidence, one.curve.mean_accuracy)
        return (Cell(one.pipeline), interval_cell(one.ace), *map(Cell, means))

    table = Table.of("Reliability of chosen pipelines, 15 bins", columns, tasks, cells, data.rule, first="")
    return {"figure8_reliability": table}


def _reliability_figures(data: ReliabilityData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        title = "The best of all pipelines, chosen on the test cases"
        text = f"{data.rule} This shows what is possible; it is not how to choose a calibrator."
        curves = _drawn(found, "(ACE {:.1f} %)")
        yield drawn_of(section, "reliability", title, text, reliability_figure, curves, "all voxels, 15 bins")


def panel_figure(data: ReliabilityData) -> Drawn:
    """Return the diagrams of all tasks beside each other, as a file only."""
    curves = {task: _drawn(roles, "({:.1f} %)") for task, roles in data.tasks.items() if roles}
    draw = partial(reliability_panel, curves, data.rule)
    return Drawn("reliability_panel", "", "Reliability of chosen pipelines", data.rule, draw, on_page=False)


def _drawn(roles: dict[str, ChosenCurves], ace: str) -> dict[str, CurveData]:
    return {
        f"{one.pipeline} {ace.format(100 * (one.ace.value or 0))}": to_builtins(one.curve) for one in roles.values()
    }


BINNING = Study(
    "Fig. 6: other numbers of bins", "ece and ace among the metrics", "nothing", True,
    lambda setting: summary_binning(setting.summary), BinningData, binning_tables, _binning_figures,
)  # fmt: skip
RELIABILITY = Study(
    "Fig. 8: reliability diagrams", "ace among the metrics", "nothing", True,
    _run_reliability, ReliabilityData, _reliability_tables, _reliability_figures,
)  # fmt: skip
