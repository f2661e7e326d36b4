"""One factor on the horizontal axis, and ECE, NLL, mIoU and entropy of uncalibrated predictions for each of its values.

ECE and NLL are means over cases with intervals, mIoU is of all cases together (Fig. 2 of selective scaling).
"""

from msgspec import Struct

from segcal.cases.base import Cases
from segcal.evaluation.evaluate import evaluate
from segcal.report.table import Column, Table
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
