"""What else moves ECE and mIoU: ensemble size, crop size, test-time scales, model size (Fig. 2 of selective scaling).

Each study puts one factor on the horizontal axis and measures uncalibrated predictions: ECE and NLL as means over
cases with intervals, mIoU of all cases together. Ensemble size needs nothing but the members. Crop size and scales
need a model that can be run: those of embedded tasks can, and :func:`model_study` takes any other. Model size is what a
protocol says of its tasks (``study_options.model_sizes``), each task being another model on the same cases.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

from segcal.benchmark.studies.base import Study, estimate_cell
from segcal.benchmark.studies.inference import SCALES, in_crops, over_scales, slice_by_slice
from segcal.benchmark.studies.repredicted_cases import Model, RepredictedCases
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.cases.base import Cases
from segcal.evaluation.evaluate import evaluate
from segcal.report.table import Cell, Column, Group, Row, Table

METRICS = ("ece", "nll", "miou", "entropy")
# Shares of the shorter in-plane side of an image that crops have.
CROP_SHARES = (0.25, 0.5, 0.75, 1.0)
SCALE_SETS = ((1.0,), SCALES[1:4], SCALES)

# By the factor's value, in the order of the axis, the estimate of each metric.
Curve = dict[str, dict[str, dict[str, Any]]]
# From a model to one that is run in a way that is studied.
Way: TypeAlias = Callable[[Model], Model]


class Runnable(NamedTuple):
    """A task whose model can be run.

    Attributes:
        task: its name.
        cases: cases with images and labels.
        model: makes logits from the image of a case.
        in_plane: the model sees one slice ``(channels, height, width)`` of a volume at a time, and so do crops and
            scales.
    """

    task: str
    cases: Cases
    model: Model
    in_plane: bool = False


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
    return model_study("crop_size", _embedded(setting, "crop size"))


def run_test_scales(setting: Setting) -> Study:
    """Run the models of embedded tasks on one scale, and on several with their mean."""
    return model_study("test_scales", _embedded(setting, "test scales"))


def model_study(name: str, runnables: Iterable[Runnable]) -> Study:
    """Run models in every way of a study: "crop_size" or "test_scales"."""
    first, title, ways = MODEL_STUDIES[name]
    found: dict[str, Curve] = {}
    for task, cases, model, in_plane in runnables:
        models = {key: way(model) for key, way in ways(cases).items()}
        sliced = {key: slice_by_slice(one) for key, one in models.items()} if in_plane else models
        found[task] = compare_models(cases, sliced)
    if not found:
        raise NothingToStudyError("no task has a model that can be run; embedded tasks have one")
    return factor_study(name, first, title, found)


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
        {name: Table(title, first, columns, groups, (note,), apart=True)},
    )


def crop_ways(cases: Cases) -> dict[str, Way]:
    """Return, by their size, ways to see crops; the sizes are shares of the first case's shorter in-plane side."""
    space = cases.read(cases.ids[0]).logits.shape[1:]
    side = min(space[-2:]) if len(space) > 1 else space[0]
    sizes = sorted({max(8, round(share * side)) for share in CROP_SHARES})
    return {str(size): _crop_way(size) for size in sizes}


def scale_ways(cases: Cases) -> dict[str, Way]:
    """Return, by their scales, ways to see one scale or several; they are the same for all cases."""
    return {", ".join(f"{scale:g}" for scale in scales): _scale_way(scales) for scales in SCALE_SETS}


# Of each study: the title of the first column, that of the table, and the ways.
MODEL_STUDIES: dict[str, tuple[str, str, Callable[[Cases], Mapping[str, Way]]]] = {
    "crop_size": ("Crop", "Crop size of the input", crop_ways),
    "test_scales": ("Scales", "Averaging over test-time scales", scale_ways),
}


def _embedded(setting: Setting, what: str) -> Iterable[Runnable]:
    for task in setting.tasks:
        opened = setting.open(task, "mean_logits")
        if opened.model is not None:
            setting.progress(f"{what} of {task.name}")
            yield Runnable(task.name, setting.some(opened.cases), opened.model)


def _crop_way(size: int) -> Way:
    return lambda model: in_crops(model, size)


def _scale_way(scales: Sequence[float]) -> Way:
    return lambda model: over_scales(model, scales)


def _cells(numbers: Mapping[str, dict[str, Any]]) -> tuple[Cell, ...]:
    return tuple(estimate_cell(numbers.get(metric)) for metric in METRICS)
