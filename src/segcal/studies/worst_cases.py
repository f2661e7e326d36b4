"""A few cases to look at, the worst first: where the confidence misleads most, and where calibration helped least.

For each task the pipeline is the one that `segcal fit` would take, chosen on validation cases
(:mod:`segcal.studies.default`). Of the test cases of the first repeat those are kept that a critical reader
would ask for: the highest NLL after calibration, the smallest and the largest gain. How many there are, and how large
their pictures, is bounded, however many cases were tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from segcal.benchmark.pipelines import Pipeline
from segcal.studies.base import Study
from segcal.report.case_maps import CaseNumbers, see_cases
from segcal.studies.default import choose_default
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.benchmark.tasks import Task
from segcal.report.table import Cell, Column, Group, Row, Table

NAME = "worst_cases"
# By reason, how many cases are kept for it; a case may have several.
REASONS = {"worst": 3, "least gain": 2, "most gain": 1}
# Of local temperatures, those of the first that was fitted are shown.
LOCAL = ("lts_ti", "lts")
# Characters of pictures a task, about; the first case is kept whatever its size.
BUDGET = 1_000_000
RULE = (
    "The calibrator is the one that segcal fit would take, chosen on the validation cases of the first repeat. Cases "
    "are from its test cases: three with the highest loss (NLL) after calibration, two that gained least, one that "
    "gained most."
)


def run_worst_cases(setting: Setting) -> Study:
    """Choose a pipeline and a few cases of each task, and keep their maps."""
    tasks = {}
    for task in setting.tasks:
        setting.progress(f"worst cases of {task.name}")
        tasks[task.name] = look_at(setting, task)
    if not tasks:
        raise NothingToStudyError("no task was fitted")
    columns = (Column("why"), Column("before", "NLL"), Column("after", "NLL"), Column("before", "ECE"),
               Column("after", "ECE"), Column("Dice", digits=3))  # fmt: skip
    groups = tuple(
        Group(f"{name}: {found['chosen']['title']}", tuple(Row(each["case"], _cells(each)) for each in found["cases"]))
        for name, found in tasks.items()
    )
    table = Table("Cases to look at, the worst first", "Case", columns, groups, (RULE,))
    return Study(NAME, {"rule": RULE, "tasks": tasks}, {"worst_cases": table})


def look_at(setting: Setting, task: Task) -> dict[str, Any]:
    """Return the chosen pipeline of a task, and its cases with their maps."""
    chosen, validation = choose_pipeline(setting, task)
    opened = setting.open(task, chosen.pooling)
    cases = setting.split(task, chosen.pooling).test
    calibrator = setting.calibrator(task, chosen)
    local = local_pipeline(setting, task, chosen.pooling)
    rows = case_rows(setting, task.name, chosen)
    kept: list[dict[str, Any]] = []
    used = 0
    for case_id, why in choose_cases(rows).items():
        case = cases.read(case_id)
        arrays = arrays_of(case, calibrator)
        if local is not None:
            arrays = replace(arrays, temperature=temperature_of(case, setting.calibrator(task, local)))
        maps = maps_of(case, arrays, opened.background, cases.has_offset)
        used += size_of(maps)
        if kept and used > BUDGET:
            break
        kept.append({"case": case_id, "why": why, **rows[case_id], **maps})
    return {
        "chosen": {"title": chosen.title, **chosen.to_plain()},
        "validation_nll": validation,
        "cases": kept,
        "of": len(rows),
        "temperature": None if local is None else local.title,
    }


def local_pipeline(setting: Setting, task: Task, pooling: str) -> Pipeline | None:
    """Return the pipeline whose local temperature is shown, if one was fitted."""
    found = {each.calibrator: each for each in setting.pipelines(task.name, pooling)}
    return next((found[name] for name in LOCAL if name in found), None)


def choose_pipeline(setting: Setting, task: Task) -> tuple[Pipeline, dict[str, float]]:
    """Return the pipeline that would be taken by default, and the validation NLL of all that were compared.

    With mean logits if they were pooled so, else with the first pooling of the protocol. Without validation cases it is
    the first calibrator that keeps the mask and does not see the offset.
    """
    found = setting.pipelines(task.name)
    pooling = "mean_logits" if any(each.pooling == "mean_logits" for each in found) else found[0].pooling
    if len(setting.split(task, pooling).val):
        default = choose_default(setting, task, pooling)
        return default.pipeline, default.validation_nll
    own = [each for each in found if each.pooling == pooling]
    safe = [each for each in own if each.calibrator != "identity" and each.preserves and each.translation_invariant]
    return (safe or own)[0], {}


def case_rows(setting: Setting, task: str, chosen: Pipeline) -> dict[str, dict[str, Any]]:
    """Return NLL, ECE and Dice of the test cases of the first repeat, before and after."""
    after = setting.results.repeats(task, chosen.title)[0]
    plain = setting.results.repeats(task, Pipeline(chosen.pooling, "identity").title) or [after]
    pairs = zip(plain[0].rows, after.rows, strict=True)
    return {
        new["case"]: {
            **{name: [old["metrics"].get(name), new["metrics"].get(name)] for name in ("nll", "ece", "dice")},
            "voxels": new["voxels"],
            "flip_rate": new["metrics"].get("flip_rate"),
        }
        for old, new in pairs
    }


def choose_cases(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the cases to keep with the reasons why, the worst first.

    >>> rows = {"a": {"nll": [1.0, 0.9]}, "b": {"nll": [0.5, 0.6]}, "c": {"nll": [None, None]}}
    >>> choose_cases(rows)
    {'a': ['worst', 'least gain', 'most gain'], 'b': ['worst', 'least gain']}
    """
    known = {name: row["nll"] for name, row in rows.items() if None not in row["nll"]}
    by_loss = sorted(known, key=lambda name: (-known[name][1], name))
    by_gain = sorted(known, key=lambda name: (known[name][0] - known[name][1], name))
    ordered: dict[str, Sequence[str]] = {"worst": by_loss, "least gain": by_gain, "most gain": by_gain[::-1]}
    kept: dict[str, list[str]] = {}
    for reason, most in REASONS.items():
        for name in ordered[reason][:most]:
            kept.setdefault(name, []).append(reason)
    return {name: kept[name] for name in by_loss if name in kept}


def _cells(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (Cell(", ".join(one["why"])), *(Cell(value) for value in (*one["nll"], *one["ece"], one["dice"][1])))
