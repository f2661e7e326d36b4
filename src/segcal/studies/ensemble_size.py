"""ECE and mIoU by the number of members; it needs nothing but the members."""

from segcal.studies.factor import FactorCurve, FactorData, factor_outcome, measure
from segcal.studies.setting import NothingToStudyError, Setting, member_count
from segcal.studies.study import Outcome, Study


def run_ensemble_size(setting: Setting) -> Outcome[FactorData]:
    """Measure the tasks of a benchmark with their first 1, 2, ... members."""
    found: dict[str, FactorCurve] = {}
    for task in setting.tasks:
        if member_count(task) > 1:
            found[task.name] = {str(size): measure(cases) for size, cases in setting.by_members(task)}
    if not found:
        raise NothingToStudyError("no task has two members")
    return factor_outcome("ensemble_size", "Members", "Ensemble size", found)


STUDY = Study(
    "ECE and mIoU by number of members", "two members", "reads every case once for each ensemble size", False,
    run_ensemble_size, FactorData,
)  # fmt: skip
