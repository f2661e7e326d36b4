"""One factor on the horizontal axis, and ECE, NLL, mIoU and entropy of uncalibrated predictions for each of its values.

ECE and NLL are means over cases with intervals, mIoU is of all cases together (Fig. 2 of selective scaling).
Some factors are ways to run a model again: that of an embedded task, or any that a script gives. A model is any
function from an image ``(channels, *space)`` to logits ``(classes, *space)``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from msgspec import Struct
from torch import Tensor

from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.evaluation.evaluate import evaluate
from segcal.report.table import Column, Table
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import Outcome, interval_cell, task_groups
from segcal.summary import Estimate

COLUMNS = {
    "ece": Column("ECE", better="lower"),
    "nll": Column("NLL", better="lower"),
    "miou": Column("mIoU", digits=1, scale=100, better="higher"),
    "entropy": Column("entropy"),
}
NOTE = "Uncalibrated predictions; mean over cases with 95 % intervals, mIoU of all cases together in %."
# By the factor's value, in the order of the axis, the estimate of each metric.
FactorCurve = dict[str, dict[str, Estimate]]
Model: TypeAlias = Callable[[Tensor], Tensor]
# From a model to one that is run in a way that is studied; of each study, the ways for some cases by their name.
Way: TypeAlias = Callable[[Model], Model]
Ways: TypeAlias = Callable[[Cases], Mapping[str, Way]]


class FactorData(Struct):
    """The data of a study of one factor: a curve for each task."""

    tasks: dict[str, FactorCurve]


def measure(cases: Cases) -> dict[str, Estimate]:
    """Return the estimates of uncalibrated predictions."""
    return dict(evaluate(cases, metrics=tuple(COLUMNS)).before)


def factor_outcome(name: str, first: str, title: str, tasks: dict[str, FactorCurve]) -> Outcome[FactorData]:
    """Return the outcome of curves by task; `first` heads the column of the factor's values."""
    groups = task_groups(tasks, lambda numbers: [interval_cell(numbers.get(metric)) for metric in COLUMNS])
    table = Table(title, first, tuple(COLUMNS.values()), groups, (NOTE,), apart=True)
    return Outcome(FactorData(tasks), {name: table})


class Runnable(NamedTuple):
    """A task with images and labels whose model can be run.

    With `in_plane` the model sees one slice ``(channels, height, width)`` of a volume at a time, and so do crops and
    scales.
    """

    task: str
    cases: Cases
    model: Model
    in_plane: bool = False


class RepredictedCases(Cases):
    """Cases with images, predicted again by a model when they are read."""

    def __init__(self, cases: Cases, model: Model) -> None:
        super().__init__(cases.ids, cases.num_classes, "logits", cases.pooling, cases.class_names, groups=cases.groups)
        self._cases, self._model = cases, model

    def read(self, case_id: str) -> Case:
        """Read one case and predict it."""
        case = self._cases.read(case_id)
        if case.image is None:
            raise InputError(f"case {case_id!r} has no image, but a model needs one. Open the cases with images.")
        logits = self._model(case.image)
        if logits.shape != case.logits.shape:
            raise InputError(
                f"the model returns shape {tuple(logits.shape)} for case {case_id!r}, but its logits have "
                f"{tuple(case.logits.shape)}. Return (classes, *space) at the resolution of the image."
            )
        return replace(case, logits=logits)


def embedded_models(setting: Setting) -> Iterator[Runnable]:
    """Yield the tasks of a benchmark whose models can be run."""
    for task in setting.tasks:
        opened = setting.protocol.open(task, "mean_logits")
        if opened.model is not None:
            setting.progress(f"models of {task.name}")
            yield Runnable(task.name, setting.some(opened.cases), opened.model)


def model_outcome(name: str, first: str, title: str, ways: Ways, runnables: Iterable[Runnable]) -> Outcome[FactorData]:
    """Run models in every way of a study, and measure them on the same cases."""
    found: dict[str, FactorCurve] = {}
    for task, cases, model, in_plane in runnables:
        models = {key: way(model) for key, way in ways(cases).items()}
        sliced = {key: slice_by_slice(one) for key, one in models.items()} if in_plane else models
        found[task] = compare_models(cases, sliced)
    if not found:
        raise NothingToStudyError("no task has a model that can be run; embedded tasks have one")
    return factor_outcome(name, first, title, found)


def compare_models(cases: Cases, models: Mapping[str, Model]) -> FactorCurve:
    """Return the estimates of several ways to predict the same cases, in their order."""
    return {name: measure(RepredictedCases(cases, model)) for name, model in models.items()}


def slice_by_slice(model: Model) -> Model:
    """Return a model of volumes ``(channels, slices, height, width)`` that sees one slice at a time; pictures pass."""

    def predict(image: Tensor) -> Tensor:
        if image.ndim < 4:
            return model(image)
        return torch.stack([model(image[:, number]) for number in range(image.shape[1])], dim=1)

    return predict
