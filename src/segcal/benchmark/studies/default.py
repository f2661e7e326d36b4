r"""Which calibrator `segcal fit` would take, told from what a benchmark has already fitted.

The rule is that of :mod:`segcal.fitting.choice`, on the validation cases of the first repeat: a pipeline that is
clearly better than temperature scaling, or temperature scaling, or nothing. Nothing is fitted again.
"""

from dataclasses import dataclass

import torch

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.studies.setting import Setting
from segcal.benchmark.tasks import Task
from segcal.fitting.choice import Candidate, Tried, candidates, decide
from segcal.fitting.division import group_names
from segcal.fitting.held_out import measure
from segcal.fitting.voxels import StreamedVoxels


@dataclass(frozen=True)
class Default:
    """The chosen pipeline, why, and the mean validation NLL of all that were compared, by their title."""

    pipeline: Pipeline
    reason: str
    validation_nll: dict[str, float]


def choose_default(setting: Setting, task: Task, pooling: str | None = "mean_logits") -> Default:
    """Choose on the validation cases of the first repeat, among the pipelines with one pooling, or with any."""
    poolings = dict.fromkeys(each.pooling for each in setting.pipelines(task.name, pooling))
    tried: dict[Pipeline, Tried] = {}
    for name in poolings:
        validation = setting.split(task, name).val
        voxels = StreamedVoxels(validation, lambda: None)
        for each in setting.pipelines(task.name, name):
            if each.calibrator in candidates(validation.num_classes):
                calibrator = setting.calibrator(task, each)
                candidate = Candidate(each.calibrator, each.pooling, calibrator.num_identifiable())
                tried[each] = Tried(candidate, measure(calibrator, voxels, torch.device("cpu")))
    groups = dict(zip(validation.ids, group_names(validation, validation.ids), strict=True))
    decision = decide(list(tried.values()), groups, folds=1)
    chosen = decision.chosen
    return Default(
        next(each for each in tried if (each.calibrator, each.pooling) == (chosen.name, chosen.pooling)),
        decision.reason,
        {each.title: row.nll for each, row in tried.items()},
    )
