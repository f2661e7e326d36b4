"""ECE and mIoU by model size: a protocol says it of its tasks, each being another model on the same cases."""

from segcal.studies.factor import COLUMNS, FactorCurve, FactorData, factor_outcome
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import Outcome, Study


def run_model_size(setting: Setting) -> Outcome[FactorData]:
    """Read ECE and mIoU of tasks that are models of different size."""
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
    return factor_outcome("model_size", "Model (parameters)", "Model size", found)


STUDY = Study(
    "ECE and mIoU by model size: tasks that are models of one data set", "`study_options.model_sizes`", "nothing",
    False, run_model_size, FactorData,
)  # fmt: skip
