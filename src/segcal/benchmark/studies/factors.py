"""What else moves ECE and mIoU: ensemble size, crop size, test-time scales, model size (Fig. 2 of selective scaling).

Each study puts one factor on the horizontal axis and measures uncalibrated predictions: ECE and NLL as means over
cases with intervals, mIoU of all cases together. Ensemble size needs nothing but the members. Crop size and scales
need a model that can be run: those of embedded tasks can. Model size is what a protocol says of its tasks
(``study_options.model_sizes``), each task being another model on the same cases.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from segcal.benchmark.studies.base import Study, estimate_cell
from segcal.benchmark.studies.inference import SCALES, in_crops, over_scales
from segcal.benchmark.studies.repredicted_cases import Model, RepredictedCases
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.cases.base import Cases
from segcal.evaluate import evaluate
from segcal.report.table import Cell, Column, Group, Row, Table

METRICS = ("ece", "nll", "miou", "entropy")
# Shares of the shorter in-plane side of an image that crops have.
CROP_SHARES = (0.25, 0.5, 0.75, 1.0)
FEW_SCALES = (1.0,)

# By the factor's value, in the order of the axis, the estimate of each metric.
Curve = dict[str, dict[str, dict[str, Any]]]


def run_ensemble_size(setting: Setting) -> Study:
    """Measure the tasks of a benchmark with their first 1, 2, ... members."""
    found: dict[str, Curve] = {}
    for task in setting.tasks:
        most = task.members if isinstance(task.members, int) else len(task.members)
        if most < 2:
            continue
        found[task.name] = {}
        for size in range(1, most + 1):
            setting.progress(f"{task.name} with {size} of {most} members")
            cases = setting.some(setting.open(task, "mean_logits", size).cases)
            found[task.name][str(size)] = measure(cases)
    if not found:
        raise NothingToStudyError("no task has two members")
    return factor_study("ensemble_size", "Members", "Ensemble size", found)


def run_crop_size(setting: Setting) -> Study:
    """Run the models of embedded tasks on crops."""
    return _run_models(setting, "crop_size", "Crop", "Crop size of the input", _crops)


def run_test_scales(setting: Setting) -> Study:
    """Run the models of embedded tasks on one scale, and on several with their mean."""
    return _run_models(setting, "test_scales", "Scales", "Averaging over test-time scales", lambda cases: _scales())


def run_model_size(setting: Setting) -> Study:
    """Read ECE and mIoU of tasks that are models of different size."""
    sizes = setting.options.model_sizes or {}
    known = [task.name for task in setting.tasks if task.name in sizes]
    if len(known) < 2:
        raise NothingToStudyError("study_options.model_sizes names fewer than two tasks")
    found: dict[str, Curve] = {}
    for name in sorted(known, key=lambda each: sizes[each]):
        for pipeline in setting.pipelines(name):
            if pipeline.calibrator == "identity":
                numbers = setting.numbers(name, pipeline.title)
                own = {metric: numbers[metric] for metric in METRICS if metric in numbers}
                found.setdefault(pipeline.pooling, {})[f"{name} ({sizes[name]:,})"] = own
    return factor_study("model_size", "Model (parameters)", "Model size", found)


def measure(cases: Cases) -> dict[str, dict[str, Any]]:
    """Return the estimates of uncalibrated predictions."""
    found = evaluate(cases, metrics=METRICS)
    return {name: asdict(one) for name, one in found.before.items()}


def compare_models(cases: Cases, models: Mapping[str, Model]) -> Curve:
    """Return the estimates of several ways to predict the same cases.

    Args:
        cases: cases with images and labels.
        models: by name, in the order of the axis.
    """
    return {name: measure(RepredictedCases(cases, model)) for name, model in models.items()}


def factor_study(name: str, first: str, title: str, found: Mapping[str, Curve]) -> Study:
    """Return a study of estimates by task, value of the factor, and metric."""
    columns = (
        Column("ECE", better="lower"),
        Column("NLL", better="lower"),
        Column("mIoU", digits=1, scale=100, better="higher"),
        Column("entropy"),
    )
    groups = tuple(
        Group(task, tuple(Row(value, _cells(numbers)) for value, numbers in curve.items()))
        for task, curve in found.items()
    )
    note = "Uncalibrated predictions; mean over cases with 95 % intervals, mIoU of all cases together in %."
    return Study(
        name,
        {"tasks": {task: dict(curve) for task, curve in found.items()}},
        {name: Table(title, first, columns, groups, (note,))},
    )


Ways = Callable[[Cases], Mapping[str, Callable[[Model], Model]]]


def _run_models(setting: Setting, name: str, first: str, title: str, ways: Ways) -> Study:
    found: dict[str, Curve] = {}
    for task in setting.tasks:
        opened = setting.open(task, "mean_logits")
        if opened.model is None:
            continue
        cases = setting.some(opened.cases)
        setting.progress(f"{name.replace('_', ' ')} of {task.name}")
        found[task.name] = compare_models(cases, {key: way(opened.model) for key, way in ways(cases).items()})
    if not found:
        raise NothingToStudyError("no task has a model that can be run; embedded tasks have one")
    return factor_study(name, first, title, found)


def _crops(cases: Cases) -> dict[str, Callable[[Model], Model]]:
    space = cases.read(cases.ids[0]).logits.shape[1:]
    side = min(space[-2:]) if len(space) > 1 else space[0]
    sizes = sorted({max(8, round(share * side)) for share in CROP_SHARES})
    return {str(size): _crop_way(size) for size in sizes}


def _crop_way(size: int) -> Callable[[Model], Model]:
    return lambda model: in_crops(model, size)


def _scales() -> dict[str, Callable[[Model], Model]]:
    return {_scale_title(scales): _scale_way(scales) for scales in (FEW_SCALES, SCALES[1:4], SCALES)}


def _scale_way(scales: Sequence[float]) -> Callable[[Model], Model]:
    return lambda model: over_scales(model, scales)


def _scale_title(scales: Sequence[float]) -> str:
    return ", ".join(f"{scale:g}" for scale in scales)


def _cells(numbers: Mapping[str, dict[str, Any]]) -> tuple[Cell, ...]:
    return tuple(estimate_cell(numbers.get(metric)) for metric in METRICS)
