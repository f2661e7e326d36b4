"""How much ECE and ACE depend on the number of bins (Fig. 6).

The benchmark counts every case once, with all numbers of bins at the same time; this study only reads its summary. ECE
is the mean over cases and repeats with its bootstrap interval, ACE the mean over repeats [min, max]. For every number
of bins the pipelines are ranked; what matters to a reader is how many pairs of pipelines change places against the
numbers of bins that the tables use: 50 for ECE, 15 for ACE.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from segcal.studies.base import Study, estimate_cell
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.report.table import Cell, Column, Group, Row, Table

NAME = "binning"
# By metric and number of bins, the name in the summary; the last of each is what the tables use.
NAMES: dict[str, dict[int, str]] = {
    "ece": {20: "ece_20", 30: "ece_30", 40: "ece_40", 50: "ece"},
    "ace": {15: "ace", 20: "ace_20", 30: "ace_30", 40: "ace_40"},
}
REFERENCE = {"ece": 50, "ace": 15}
# Of a pipeline, by metric and number of bins: value, low, high.
Numbers = dict[str, dict[str, dict[str, Any]]]


def run_binning(setting: Setting) -> Study:
    """Read the numbers of all pipelines from the summary of a benchmark."""
    return summary_binning(setting.summary)


def summary_binning(summary: Mapping[str, Any]) -> Study:
    """Return the study of a summary, which is all that it needs."""
    tasks: dict[str, dict[str, Numbers]] = {}
    for row in summary["results"]:
        if not row["test_on"] and all(name in row["metrics"] for names in NAMES.values() for name in names.values()):
            numbers = {
                metric: {str(bins): row["metrics"][name] for bins, name in names.items()}
                for metric, names in NAMES.items()
            }
            tasks.setdefault(row["task"], {})[row["pipeline"]] = numbers
    if not tasks:
        raise NothingToStudyError("the benchmark has no ece and ace among its metrics")
    return binning_study(tasks)


def binning_study(tasks: Mapping[str, Mapping[str, Numbers]]) -> Study:
    """Return the study of numbers by task and pipeline."""
    data = {
        task: {"pipelines": dict(pipelines), "changed_pairs": changed_pairs(pipelines)}
        for task, pipelines in tasks.items()
    }
    columns = tuple(
        Column(f"{bins} bins", metric.upper(), better="lower") for metric, names in NAMES.items() for bins in names
    )
    groups = tuple(
        Group(task, tuple(Row(name, _cells(numbers)) for name, numbers in pipelines.items()))
        for task, pipelines in tasks.items()
    )
    notes = tuple(_note(task, changed_pairs(pipelines), len(pipelines)) for task, pipelines in tasks.items())
    table = Table("Sensitivity of ECE and ACE to binning", "Pipeline", columns, groups, notes, apart=True)
    return Study(NAME, {"tasks": data, "reference_bins": REFERENCE}, {"figure6_binning": table})


def changed_pairs(pipelines: Mapping[str, Numbers]) -> dict[str, dict[str, int]]:
    """Return how many pairs of pipelines stand in another order than with the reference number of bins."""
    return {
        metric: {
            str(bins): sum(
                _above(pipelines[a], pipelines[b], metric, bins)
                != _above(pipelines[a], pipelines[b], metric, REFERENCE[metric])
                for a, b in combinations(pipelines, 2)
            )
            for bins in names
        }
        for metric, names in NAMES.items()
    }


def _above(first: Numbers, second: Numbers, metric: str, bins: int) -> bool | None:
    a, b = first[metric][str(bins)]["value"], second[metric][str(bins)]["value"]
    return None if a is None or b is None else bool(a > b)


def _cells(numbers: Numbers) -> tuple[Cell, ...]:
    every = [one for metric in NAMES for one in numbers[metric].values()]
    return tuple(estimate_cell(one) for one in every)


def _note(task: str, changed: Mapping[str, Mapping[str, int]], pipelines: int) -> str:
    pairs = pipelines * (pipelines - 1) // 2
    most = {metric: max(counts.values()) for metric, counts in changed.items()}
    return (
        f"{task}: of {pairs} pairs of pipelines, at most {most['ece']} change places in ECE (against 50 bins) and "
        f"{most['ace']} in ACE (against 15)."
    )
