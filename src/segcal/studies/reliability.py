"""Reliability diagrams of chosen pipelines (Fig. 8).

For each task: the first network alone and the uncalibrated pooling, the calibrated pipeline with the lowest ACE of all,
and the one with the lowest ACE among those that keep the order of the classes. The choice is made on the test cases, as
in the paper: it shows what is possible, and is not how to choose a calibrator.
"""

from collections.abc import Sequence
from typing import Any

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import UnitResult
from segcal.studies.base import Study, estimate_cell
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.statistics.reliability import Curve

NAME = "reliability"
BINS = 15
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


def run_reliability(setting: Setting) -> Study:
    """Choose the pipelines of each task and return their curves."""
    tasks = {}
    for task in setting.tasks:
        chosen = choose_pipelines(setting, task.name)
        found = {}
        for role, pipeline in chosen.items():
            units = setting.results.repeats(task.name, pipeline.title)
            ace = setting.numbers(task.name, pipeline.title)["ace"]
            found[role] = {"pipeline": pipeline.title, "preserves": pipeline.preserves, "ace": ace, **_curves(units)}
        tasks[task.name] = found
    if not any("best" in found for found in tasks.values()):
        raise NothingToStudyError("no calibrated pipeline has an ACE")
    columns = (Column("pipeline"), Column("ACE", better=None), Column("confidence"), Column("accuracy"))
    groups = tuple(
        Group(name, tuple(Row(ROLES[role], _cells(one)) for role, one in found.items()))
        for name, found in tasks.items()
    )
    table = Table("Reliability of chosen pipelines, 15 bins", "", columns, groups, (RULE,))
    return Study(NAME, {"bins": BINS, "rule": RULE, "tasks": tasks}, {"figure8_reliability": table})


def choose_pipelines(setting: Setting, task: str) -> dict[str, Pipeline]:
    """Return the pipelines of a task's diagram by their role; roles that nothing can fill are left out."""
    scored = [each for each in setting.pipelines(task) if _ace(setting, task, each) is not None]
    calibrated = [each for each in scored if each.calibrator != "identity"]
    ordered = [each for each in calibrated if each.preserves == "order"]
    best = min(calibrated, key=lambda each: _ace(setting, task, each) or 0.0, default=None)
    best_order = min(ordered, key=lambda each: _ace(setting, task, each) or 0.0, default=None)
    plain = {each.pooling: each for each in scored if each.calibrator == "identity"}
    pooling = best.pooling if best is not None else "mean_logits"
    chosen = {
        "single": plain.get("single"),
        "uncalibrated": plain.get(pooling),
        "best": best,
        "best_order": best_order,
    }
    return {role: pipeline for role, pipeline in chosen.items() if pipeline is not None}


def _ace(setting: Setting, task: str, pipeline: Pipeline) -> float | None:
    value: float | None = setting.numbers(task, pipeline.title).get("ace", {}).get("value")
    return value


def _curves(units: Sequence[UnitResult]) -> dict[str, Any]:
    """Return the curve of each repeat, and that of all voxels of all repeats."""
    curves = [unit.tables.reliability[BINS]["all"] for unit in units]
    total = curves[0]
    for curve in curves[1:]:
        total = total + curve
    return {"curve": _plain(total), "repeats": [_plain(curve) for curve in curves]}


def _plain(curve: Curve) -> dict[str, Any]:
    filled = curve.count > 0
    share = curve.count.clip(1)
    return {
        "count": curve.count.tolist(),
        "accuracy": [float(a) if there else None for a, there in zip(curve.right / share, filled, strict=True)],
        "confidence": [float(c) if there else None for c, there in zip(curve.confidence / share, filled, strict=True)],
        "mean_accuracy": float(curve.right.sum() / curve.count.sum()),
        "mean_confidence": float(curve.confidence.sum() / curve.count.sum()),
    }


def _cells(one: dict[str, Any]) -> tuple[Cell, ...]:
    ace, curve = one["ace"], one["curve"]
    means = (Cell(curve["mean_confidence"]), Cell(curve["mean_accuracy"]))
    return (Cell(one["pipeline"]), estimate_cell(ace), *means)
