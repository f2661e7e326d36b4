"""Dependence of ECE and ACE on the number of bins (Fig. 6).

The benchmark counts every case once, with all numbers of bins at the same time; this study only reads its summary. ECE
is the mean over cases and repeats with its bootstrap interval, ACE the mean over repeats [min, max]. For every number
of bins the pipelines are ranked; what matters to a reader is how many pairs of pipelines change places against the
numbers of bins that the tables use: 50 for ECE, 15 for ACE.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from msgspec import Struct

from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, new_figure, styled
from segcal.report.table import Column, Table
from segcal.studies.setting import NothingToStudyError
from segcal.studies.study import MOST_LINES, Outcome, Study, compared_first, draw_band, interval_cell, task_groups
from segcal.summary import Estimate, Summary

# By metric and number of bins, the name in the summary.
NAMES: dict[str, dict[int, str]] = {
    "ece": {20: "ece_20", 30: "ece_30", 40: "ece_40", 50: "ece"},
    "ace": {15: "ace", 20: "ace_20", 30: "ace_30", 40: "ace_40"},
}
# What the tables use.
REFERENCE = {"ece": 50, "ace": 15}
# Of a pipeline, by metric and number of bins.
Numbers = dict[str, dict[str, Estimate]]


class BinnedTask(Struct):
    """The numbers of a task by pipeline, and how many pairs stand in another order than with the usual bins."""

    pipelines: dict[str, Numbers]
    changed_pairs: dict[str, dict[str, int]]


class BinningData(Struct):
    """The data of the study, by task."""

    tasks: dict[str, BinnedTask]
    reference_bins: dict[str, int]


def summary_binning(summary: Summary) -> Outcome[BinningData]:
    """Read the numbers of all pipelines from the summary of a benchmark, which is all that it needs."""
    tasks: dict[str, dict[str, Numbers]] = {}
    for row in summary.results:
        if not row.test_on and all(name in row.metrics for names in NAMES.values() for name in names.values()):
            tasks.setdefault(row.task, {})[row.pipeline] = {
                metric: {str(bins): row.metrics[name] for bins, name in names.items()}
                for metric, names in NAMES.items()
            }
    if not tasks:
        raise NothingToStudyError("the benchmark has no ece and ace among its metrics")
    return binning_outcome(tasks)


def binning_outcome(tasks: Mapping[str, dict[str, Numbers]]) -> Outcome[BinningData]:
    """Return the outcome of numbers by task and pipeline."""
    data = {task: BinnedTask(pipelines, changed_pairs(pipelines)) for task, pipelines in tasks.items()}
    columns = tuple(
        Column(f"{bins} bins", metric.upper(), better="lower") for metric, names in NAMES.items() for bins in names
    )
    groups = task_groups(tasks, lambda own: [interval_cell(one) for metric in NAMES for one in own[metric].values()])
    notes = tuple(_note(task, one) for task, one in data.items())
    table = Table("Sensitivity of ECE and ACE to binning", "Pipeline", columns, groups, notes, apart=True)
    return Outcome(BinningData(data, REFERENCE), {"figure6_binning": table})


def changed_pairs(pipelines: Mapping[str, Numbers]) -> dict[str, dict[str, int]]:
    """Return how many pairs of pipelines stand in another order than with the reference number of bins."""

    def above(a: str, b: str, metric: str, bins: int) -> bool | None:
        first, second = (pipelines[title][metric][str(bins)].value for title in (a, b))
        return None if first is None or second is None else first > second

    return {
        metric: {
            str(bins): sum(
                above(a, b, metric, bins) != above(a, b, metric, REFERENCE[metric])
                for a, b in combinations(pipelines, 2)
            )
            for bins in names
        }
        for metric, names in NAMES.items()
    }


def _note(task: str, found: BinnedTask) -> str:
    pairs = len(found.pipelines) * (len(found.pipelines) - 1) // 2
    most = {metric: max(counts.values()) for metric, counts in found.changed_pairs.items()}
    return (
        f"{task}: of {pairs} pairs of pipelines, at most {most['ece']} change places in ECE (against 50 bins) and "
        f"{most['ace']} in ACE (against 15)."
    )


@styled()
def binning_figure(pipelines: Mapping[str, Numbers], shown: Sequence[str] | None = None) -> Any:
    """Return ECE and ACE by the number of bins, with their intervals; of all pipelines if `shown` is None."""
    kept = [title for title in (shown or pipelines) if title in pipelines][:MOST_LINES]
    figure, axes = new_figure(1, 2, 9, 3.4)
    for axis, metric in zip(axes[0], ("ece", "ace"), strict=True):
        for number, title in enumerate(kept):
            by_bins = pipelines[title][metric]
            draw_band(axis, [int(bins) for bins in by_bins], list(by_bins.values()), number, title)
        axis.set(title=metric.upper(), xlabel="number of bins", ylim=(0, None))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _figures(data: BinningData, section: TaskSection) -> Iterator[Drawn]:
    found = data.tasks.get(section.task)
    if found:
        text = "The error depends on how finely confidence is divided; what matters is that the lines keep their order."
        draw = partial(binning_figure, found.pipelines, compared_first(section, found.pipelines))
        yield Drawn(f"binning_{section.task}", section.task, "Does the number of bins matter?", text, draw)


STUDY = Study(
    "Fig. 6: other numbers of bins", "ece and ace among the metrics", "nothing", True,
    lambda setting: summary_binning(setting.summary), BinningData, _figures,
)  # fmt: skip
