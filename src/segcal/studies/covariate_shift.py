"""Calibrators that were fitted on clean data, on corrupted copies of the test cases (Tables 6 and 7, Fig. 7).

A corrupted copy is a task of `test_on` that has the same cases, or some of them. The numbers of Table 7 are those of
the benchmark; this study sets them beside the clean ones, case by case: how much worse each pipeline becomes, with
paired intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from segcal.studies.corruptions import BLUR_TAPS, CORRUPTIONS, SETTINGS, STRENGTHS, corrupt
from segcal.benchmark.results import UnitResult
from segcal.studies.base import Study, estimate_cell
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.benchmark.tasks import Task
from segcal.metrics import METRICS
from segcal.report.pictures import encode_values
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.summary import Draws, difference

NAME = "covariate_shift"
COMPARED = ("nll", "ece", "ba_ece", "dice")
SHOWN = {"nll": ("NLL", 3, 1.0), "ece": ("ECE", 3, 1.0)}
TITLES = {
    "noise": "Gaussian noise (sigma)",
    "blur": "Gaussian blur (taps, sigma)",
    "brightness": "Brightness (factor)",
    "jpeg": "JPEG compression (quality)",
    "fog": "Fog (alpha)",
}


def run_covariate_shift(setting: Setting) -> Study:
    """Compare clean and corrupted test cases of all tasks that have corrupted copies."""
    tasks: dict[str, Any] = {}
    groups = []
    targets: list[str] = []
    for task in setting.tasks:
        copies = [target for target in task.test_on if _same_cases(setting, task.name, target)]
        if copies:
            tasks[task.name] = {
                "pipelines": _task(setting, task.name, copies),
                "example": example_corruptions(setting, task),
            }
            targets += [target for target in copies if target not in targets]
    if not tasks:
        raise NothingToStudyError("no task has a corrupted copy of its cases in test_on")
    for name, found in tasks.items():
        rows = tuple(Row(title, _cells(places, targets)) for title, places in found["pipelines"].items())
        groups.append(Group(name, rows))
    columns = tuple(
        Column(f"Δ{title}" if place else title, place or "clean", digits, scale, METRICS[metric].better)
        for place in ("", *targets)
        for metric, (title, digits, scale) in SHOWN.items()
    )
    title = "Fitted on clean cases, tested on corrupted copies"
    table = Table(
        title,
        "Pipeline",
        columns,
        tuple(groups),
        ("Δ: change against the clean cases, paired, with its interval. The values themselves: tables shift_*.",),
        apart=True,
    )
    data = {"tasks": tasks, "settings": SETTINGS}
    return Study(NAME, data, {"table6_corruptions": settings_table(), "covariate_shift": table})


def settings_table() -> Table:
    """Return Table 6: what the corruptions are at their two strengths."""
    rows = []
    for kind, strengths in SETTINGS.items():
        texts = [
            f"{BLUR_TAPS[strengths[each]]}, {strengths[each]:g}" if kind == "blur" else f"{strengths[each]:g}"
            for each in STRENGTHS
        ]
        rows.append(Row(TITLES[kind], tuple(Cell(text) for text in texts)))
    note = "A picture gets one of them, chosen by a digest of its name; labels stay."
    columns = tuple(Column(strength) for strength in STRENGTHS)
    return Table("Photometric corruptions", "Corruption", columns, (Group("", tuple(rows)),), (note,))


def compare_shift(
    clean: Sequence[UnitResult], shifted: Sequence[UnitResult], bootstrap: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the paired change of each metric from the clean to the shifted cases of a pipeline.

    A copy may have some of the cases only; the change is that of those.
    """
    draws = Draws([len(unit.rows) for unit in shifted], bootstrap["replicates"], bootstrap["seed"])
    kept = [{row["case"] for row in unit.rows} for unit in shifted]
    paired = [
        replace(unit, rows=[row for row in unit.rows if row["case"] in ids])
        for unit, ids in zip(clean, kept, strict=True)
    ]
    return {
        name: asdict(
            difference(_columns(paired, name), _columns(shifted, name), draws, METRICS[name].better, bootstrap["level"])
        )
        for name in COMPARED
        if name in shifted[0].rows[0]["metrics"]
    }


def example_corruptions(setting: Setting, task: Task) -> dict[str, Any] | None:
    """Return the image of one test case, clean and in every strong corruption; None without a picture."""
    cases = setting.split(task, "mean_logits").test
    case = cases.read(cases.ids[0])
    if case.image is None or case.image.ndim != 3 or len(case.image) not in (1, 3):
        return None
    picture = case.image.numpy()
    if picture.min() < 0 or picture.max() > 1:
        return None
    shown = {kind: corrupt(picture, case.id, "strong", kind=kind) for kind in CORRUPTIONS}
    maps = {"clean": picture} | shown
    return {
        "case": case.id,
        "images": {kind: encode_values(image if len(image) == 3 else image[0]) for kind, image in maps.items()},
    }


def _same_cases(setting: Setting, task: str, target: str) -> bool:
    """Return whether the target was tested on cases of the task's own tests: a copy, and not another place."""
    own = {each.unit.repeat: set(each.header["test"]) for each in setting.results.units if _is(each, task, "")}
    there = {each.unit.repeat: set(each.header["test"]) for each in setting.results.units if _is(each, task, target)}
    return bool(there) and all(there[repeat] <= own.get(repeat, set()) for repeat in there)


def _is(each: UnitResult, task: str, target: str) -> bool:
    return (each.unit.task, each.unit.test_on) == (task, target)


def _task(setting: Setting, task: str, copies: Sequence[str]) -> dict[str, Any]:
    found = {}
    for pipeline in setting.pipelines(task):
        clean = setting.results.repeats(task, pipeline.title)
        places: dict[str, Any] = {"": {"metrics": setting.numbers(task, pipeline.title)}}
        for target in copies:
            shifted = setting.results.repeats(task, pipeline.title, target)
            change = compare_shift(clean, shifted, setting.summary["bootstrap"])
            places[target] = {"metrics": setting.numbers(task, pipeline.title, target), "change": change}
        found[pipeline.title] = places
    return found


def _columns(units: Sequence[UnitResult], metric: str) -> list[np.ndarray]:
    return [np.array([np.nan if value is None else value for value in unit.numbers(metric)], float) for unit in units]


def _cells(places: Mapping[str, Any], targets: Sequence[str]) -> tuple[Cell, ...]:
    cells = [Cell(places[""]["metrics"].get(metric, {}).get("value")) for metric in SHOWN]
    for target in targets:
        for metric in SHOWN:
            one = places.get(target, {}).get("change", {}).get(metric)
            cells.append(estimate_cell(one))
    return tuple(cells)
