"""One factor on the horizontal axis, and ECE, NLL, mIoU and entropy of uncalibrated predictions for each of its values.

ECE and NLL are means over cases with intervals, mIoU is of all cases together (Fig. 2 of selective scaling). Factors
are the number of members and the size of the model, which a protocol declares for tasks that are models of the same
cases. Two more are ways to run a model of an embedded task or of a script again. They are crops of the input, laid side
by side, and several scales of it, pooled. A model is any function from an image ``(channels, *space)`` to logits
``(classes, *space)``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TypeAlias

from msgspec import Struct
from torch import Tensor
from torch.nn import functional

from segcal.benchmark.tasks import Task
from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.evaluation.evaluate import evaluate
from segcal.pooling import pool
from segcal.report.table import Cell, Column, Table
from segcal.studies.study import (
    ChangedCases,
    NothingToStudyError,
    Setting,
    Study,
    interval_cell,
    member_count,
    per_task,
)
from segcal.summary import Estimate

COLUMNS = {
    "ece": Column("ECE", better="lower"),
    "nll": Column("NLL", better="lower"),
    "miou": Column("mIoU", digits=1, scale=100, better="higher"),
    "entropy": Column("entropy"),
}
NOTE = "Uncalibrated predictions; mean over cases with 95 % intervals, mIoU of all cases together in %."
# Crops: shares of the shorter in-plane side of an image.
SHARES = (0.25, 0.5, 0.75, 1.0)
SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
SCALE_SETS = ((1.0,), SCALES[1:4], SCALES)
INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}
# By the factor's value, in the order of the axis, the estimate of each metric.
FactorCurve = dict[str, dict[str, Estimate]]
Model: TypeAlias = Callable[[Tensor], Tensor]
# Of a study, from some cases to ways to run a model, by their name.
Ways: TypeAlias = Callable[[Cases], Mapping[str, Callable[[Model], Model]]]


class FactorData(Struct):
    """The data of a study of one factor: a curve for each task."""

    tasks: dict[str, FactorCurve]


def _tables(stem: str, first: str, title: str, data: FactorData) -> dict[str, Table]:
    """Return the table; `first` heads the column of the factor's values."""

    def cells(numbers: dict[str, Estimate]) -> list[Cell]:
        return [interval_cell(numbers.get(metric)) for metric in COLUMNS]

    return {stem: Table.of(title, COLUMNS.values(), data.tasks, cells, NOTE, first=first, apart=True)}


def measure(cases: Cases) -> dict[str, Estimate]:
    """Return the estimates of uncalibrated predictions."""
    return dict(evaluate(cases, metrics=tuple(COLUMNS)).before)


def _by_members(setting: Setting, task: Task) -> FactorCurve | None:
    """Measure a task with its first 1, 2, ... members."""
    sizes = setting.by_members(task) if member_count(task) > 1 else ()
    return {str(size): measure(cases) for size, cases in sizes} or None


def _run_model_size(setting: Setting) -> FactorData:
    """Read ECE and mIoU of tasks that are models of different size, by pooling."""
    sizes = setting.protocol.study_options.model_sizes or {}
    known = [task.name for task in setting.tasks if task.name in sizes]
    if len(known) < 2:
        raise NothingToStudyError("study_options.model_sizes names fewer than two tasks")
    found: dict[str, FactorCurve] = {}
    for name in sorted(known, key=lambda each: sizes[each]):
        for pipeline in setting.pipelines(name):
            if pipeline.calibrator == "identity":
                numbers = setting.summary.numbers(name, pipeline.title)
                own = {metric: numbers[metric] for metric in COLUMNS if metric in numbers}
                found.setdefault(pipeline.pooling, {})[f"{name} ({sizes[name]:,})"] = own
    return FactorData(found)


def predicted_again(model: Model, case: Case) -> Case:
    """Return a case with an image as a model predicts it."""
    if case.image is None:
        raise InputError(f"case {case.id!r} has no image, but a model needs one. Open the cases with images.")
    logits = model(case.image)
    if logits.shape != case.logits.shape:
        raise InputError(
            f"the model returns shape {tuple(logits.shape)} for case {case.id!r}, but its logits have "
            f"{tuple(case.logits.shape)}. Return (classes, *space) at the resolution of the image."
        )
    return replace(case, logits=logits)


def run_models(ways: Ways, runnables: Iterable[tuple[str, Cases, Model]]) -> FactorData:
    """Run the models of tasks, whose cases have images and labels, in every way of a study, and measure them."""
    found = {
        task: {
            name: measure(ChangedCases(cases, partial(predicted_again, way(model))))
            for name, way in ways(cases).items()
        }
        for task, cases, model in runnables
    }
    if not found:
        raise NothingToStudyError("no task has a model that can be run; embedded tasks have one")
    return FactorData(found)


def _run_embedded(ways: Ways, setting: Setting) -> FactorData:
    """Run the models of embedded tasks."""
    opened = ((task.name, setting.protocol.open(task, "mean_logits")) for task in setting.tasks)
    return run_models(
        ways, ((name, setting.some(one.cases), one.model) for name, one in opened if one.model is not None)
    )


def crop_ways(cases: Cases) -> dict[str, Callable[[Model], Model]]:
    """Return, by their size, ways to see crops; the sizes are shares of the first case's shorter in-plane side."""
    space = cases.read(cases.ids[0]).logits.shape[1:]
    side = min(space[-2:]) if len(space) > 1 else space[0]
    sizes = sorted({max(8, round(share * side)) for share in SHARES})
    return {str(size): partial(in_crops, size=size) for size in sizes}


def in_crops(model: Model, size: int) -> Model:
    """Return a model that sees crops of `size` voxels along each axis, laid side by side.

    The last crop along an axis ends where the image ends, so that every crop is full. Where it overlaps the one
    before, its own prediction counts. Axes shorter than `size` are taken whole.
    """

    def predict(image: Tensor) -> Tensor:
        space = image.shape[1:]
        starts = [[*range(0, length - size, size), length - size] if length > size else [0] for length in space]
        whole: Tensor | None = None
        for corner in product(*starts):
            part = (slice(None), *(slice(start, start + size) for start in corner))
            logits = model(image[part])
            whole = logits.new_empty(len(logits), *space) if whole is None else whole
            whole[part] = logits
        assert whole is not None
        return whole

    return predict


def scale_ways(cases: Cases) -> dict[str, Callable[[Model], Model]]:
    """Return, by their scales, ways to see one scale or several; they are the same for all cases."""
    return {", ".join(f"{scale:g}" for scale in scales): partial(over_scales, scales=scales) for scales in SCALE_SETS}


def over_scales(model: Model, scales: Sequence[float]) -> Model:
    """Return a model that sees an image at several scales, brings back what it predicts to its size, and pools it."""

    def predict(image: Tensor) -> Tensor:
        return pool((_at_scale(model, image, scale) for scale in scales), "mean_probs")

    return predict


def _at_scale(model: Model, image: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return model(image)
    space = image.shape[1:]
    resize = partial(functional.interpolate, mode=INTERPOLATIONS[len(space)], align_corners=False)
    logits = model(resize(image[None].float(), size=[max(1, round(scale * length)) for length in space])[0])
    back: Tensor = resize(logits[None], size=list(space))[0]
    return back


ENSEMBLE_SIZE = Study(
    "ECE and mIoU by number of members", "two members", "reads every case once for each ensemble size", False,
    per_task(_by_members, FactorData, "no task has two members"), FactorData,
    partial(_tables, "ensemble_size", "Members", "Ensemble size"),
)  # fmt: skip
MODEL_SIZE = Study(
    "ECE and mIoU by model size: tasks that are models of one data set", "`study_options.model_sizes`", "nothing",
    False, _run_model_size, FactorData, partial(_tables, "model_size", "Model (parameters)", "Model size"),
)  # fmt: skip
CROP_SIZE = Study(
    "ECE and mIoU by crop size of the input", "embedded tasks, or networks of yours", "predicts every case four times",
    False, partial(_run_embedded, crop_ways), FactorData,
    partial(_tables, "crop_size", "Crop", "Crop size of the input"),
)  # fmt: skip
TEST_SCALES = Study(
    "ECE and mIoU with averaging over test-time scales", "embedded tasks, or networks of yours",
    "predicts every case ten times", False, partial(_run_embedded, scale_ways),
    FactorData, partial(_tables, "test_scales", "Scales", "Averaging over test-time scales"),
)  # fmt: skip
