"""Reliability diagrams of chosen pipelines (Fig. 8).

For each task: the first network alone and the uncalibrated pooling, the calibrated pipeline with the lowest ACE of all,
and the one with the lowest ACE among those that keep the order of the classes. The choice is made on the test cases, as
in the paper: it shows what is possible, and is not how to choose a calibrator.
"""

from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from segcal.benchmark.pipelines import Pipeline
from segcal.report.curves import BINS
from segcal.report.document import TaskSection
from segcal.report.figures import CurveData, Drawn, reliability_figure, reliability_panel
from segcal.report.table import Cell, Column, Table
from segcal.statistics.reliability import Curve
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import Outcome, Study, interval_cell, task_groups
from segcal.summary import Estimate

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
    """The data of the study, by task and role."""

    bins: int
    rule: str
    tasks: dict[str, dict[str, ChosenCurves]]


def run_reliability(setting: Setting) -> Outcome[ReliabilityData]:
    """Choose the pipelines of each task and return their curves."""
    tasks = {task.name: _chosen(setting, task.name) for task in setting.tasks}
    if not any("best" in found for found in tasks.values()):
        raise NothingToStudyError("no calibrated pipeline has an ACE")
    columns = (Column("pipeline"), Column("ACE", better=None), Column("confidence"), Column("accuracy"))
    rows = {name: {ROLES[role]: one for role, one in found.items()} for name, found in tasks.items()}
    table = Table("Reliability of chosen pipelines, 15 bins", "", columns, task_groups(rows, _cells), (RULE,))
    return Outcome(ReliabilityData(BINS, RULE, tasks), {"figure8_reliability": table})


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


def _chosen(setting: Setting, task: str) -> dict[str, ChosenCurves]:
    found = {}
    for role, pipeline in choose_pipelines(setting, task).items():
        curves = [unit.tables.reliability[BINS]["all"] for unit in setting.results.repeats(task, pipeline.title)]
        total = sum(curves[1:], curves[0])
        ace, apart = setting.summary.numbers(task, pipeline.title)["ace"], [_binned(curve) for curve in curves]
        found[role] = ChosenCurves(pipeline.title, pipeline.preserves, ace, _binned(total), apart)
    return found


def _binned(curve: Curve) -> BinnedCurve:
    share, total = curve.count.clip(1), curve.count.sum()
    accuracy, confidence = (
        [float(value) if there else None for value, there in zip(sums / share, curve.count > 0, strict=True)]
        for sums in (curve.right, curve.confidence)
    )
    right, sure = (float(sums.sum() / total) for sums in (curve.right, curve.confidence))
    return BinnedCurve(curve.count.tolist(), accuracy, confidence, right, sure)


def _cells(one: ChosenCurves) -> tuple[Cell, ...]:
    return (Cell(one.pipeline), interval_cell(one.ace), Cell(one.curve.mean_confidence), Cell(one.curve.mean_accuracy))


def _figures(data: ReliabilityData, section: TaskSection) -> Iterator[Drawn]:
    task = section.task
    if data.tasks.get(task):
        text = f"{data.rule} This shows what is possible; it is not how to choose a calibrator."
        draw = partial(reliability_figure, _drawn(data.tasks[task], "(ACE {:.1f} %)"), "all voxels, 15 bins")
        yield Drawn(f"reliability_{task}", task, "The best of all pipelines, chosen on the test cases", text, draw)


def panel_figure(data: ReliabilityData) -> Drawn:
    """Return the diagrams of all tasks beside each other, as a file only."""
    curves = {task: _drawn(roles, "({:.1f} %)") for task, roles in data.tasks.items() if roles}
    draw = partial(reliability_panel, curves, data.rule)
    return Drawn("reliability_panel", "", "Reliability of chosen pipelines", data.rule, draw, on_page=False)


def _drawn(roles: dict[str, ChosenCurves], ace: str) -> dict[str, CurveData]:
    return {
        f"{one.pipeline} {ace.format(100 * (one.ace.value or 0))}": {
            "count": one.curve.count, "confidence": one.curve.confidence, "accuracy": one.curve.accuracy
        }
        for one in roles.values()
    }  # fmt: skip


STUDY = Study(
    "Fig. 8: reliability diagrams", "ace among the metrics", "nothing", True,
    run_reliability, ReliabilityData, _figures,
)  # fmt: skip
