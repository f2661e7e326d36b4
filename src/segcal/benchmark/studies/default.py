r"""Which calibrator `segcal fit` would take, told from what a benchmark has already fitted.

The rule is that of :mod:`segcal.fitting.choice`: among the offset-free calibrators that keep the mask, take the lowest
mean NLL over validation cases, and of those that are within one standard error of it, with the error of the paired
difference, the one with the fewest identifiable parameters. Nothing is fitted again.
"""

from dataclasses import dataclass

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.studies.setting import Setting
from segcal.benchmark.tasks import Task
from segcal.fitting.choice import candidates, case_nll, choose_column


@dataclass(frozen=True)
class Default:
    """The chosen pipeline, and the mean validation NLL of all that were compared, by their title."""

    pipeline: Pipeline
    validation_nll: dict[str, float]


def choose_default(setting: Setting, task: Task, pooling: str = "mean_logits") -> Default:
    """Choose on the validation cases of the first repeat."""
    validation = setting.split(task, pooling).val
    names = candidates(validation.num_classes)
    pipelines = [each for each in setting.pipelines(task.name, pooling) if each.calibrator in names]
    calibrators = [setting.calibrator(task, each) for each in pipelines]
    rows = [[case_nll(calibrator, case) for calibrator in calibrators] for case in validation]
    values = np.array([row for row in rows if None not in row], float)
    simple = [calibrator.num_identifiable() for calibrator in calibrators]
    return Default(
        pipelines[choose_column(values, simple)[0]],
        {each.title: float(mean) for each, mean in zip(pipelines, values.mean(axis=0), strict=True)},
    )
