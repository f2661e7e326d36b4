"""How much ECE and ACE depend on the number of bins (Fig. 6).

Each case is counted once, with all numbers of bins at the same time. ECE is read from each case and averaged, with the
two-level bootstrap interval; ACE is read from the voxels of all cases of a repeat together and reported as mean
[min, max] over repeats. For every number of bins the pipelines are ranked; what matters to a reader is how many pairs
of pipelines change places against the numbers of bins that the tables use (50 for ECE, 15 for ACE).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from segcal.benchmark.studies.base import Study
from segcal.cases.base import Case, Cases
from segcal.cases.parallel import map_cases
from segcal.evaluation.counting import Counter, Map
from segcal.metrics import Metric
from segcal.metrics.parts import region_curve
from segcal.metrics.reliability import average_calibration_error, expected_calibration_error
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.statistics.reliability import Curve
from segcal.statistics.table import total_of
from segcal.summary import REPLICATES, Draws, estimate, over_repeats

NAME = "binning"
ECE_BINS = (20, 30, 40, 50)
ACE_BINS = (15, 20, 30, 40)
REFERENCE = {"ece": 50, "ace": 15}
# By the number of bins, the curve of one case.
Curves = dict[int, Curve]


def run_binning(
    tasks: Mapping[str, Mapping[str, Sequence[tuple[Cases, Map | None]]]], workers: int = 1, seed: int = 0
) -> Study:
    """Count and tabulate.

    Args:
        tasks: for each task and pipeline, the test cases and the calibrator (None: none) of each repeat.
        workers: how many processes count cases.
        seed: of the bootstrap.
    """
    found = {
        task: {
            name: [count_curves(cases, calibrator, workers) for cases, calibrator in repeats]
            for name, repeats in pipelines.items()
        }
        for task, pipelines in tasks.items()
    }
    return binning_study(found, seed)


def count_curves(cases: Cases, calibrator: Map | None, workers: int = 1) -> dict[str, Curves]:
    """Return the curves of each case, with every number of bins."""
    bins = sorted({*ECE_BINS, *ACE_BINS})
    metrics = {
        str(count): Metric("", region_curve("all", count), expected_calibration_error, bins=count) for count in bins
    }
    return dict(map_cases(cases, partial(_curves, Counter(metrics), calibrator), workers))


def binning_study(
    tasks: Mapping[str, Mapping[str, Sequence[Mapping[str, Curves]]]], seed: int = 0, replicates: int = REPLICATES
) -> Study:
    """Return the study of curves that have been counted: by task, pipeline, repeat and case."""
    data: dict[str, dict[str, Any]] = {}
    for task, pipelines in tasks.items():
        draws = Draws([len(repeat) for repeat in next(iter(pipelines.values()))], replicates, seed)
        numbers = {name: _pipeline(repeats, draws) for name, repeats in pipelines.items()}
        data[task] = {"pipelines": numbers, "changed_pairs": _changed_pairs(numbers)}
    columns = tuple(
        Column(f"{bins} bins", metric.upper(), better="lower")
        for metric, counts in (("ece", ECE_BINS), ("ace", ACE_BINS))
        for bins in counts
    )
    groups = tuple(
        Group(task, tuple(Row(name, _cells(numbers)) for name, numbers in one["pipelines"].items()))
        for task, one in data.items()
    )
    notes = tuple(_note(task, one["changed_pairs"], len(one["pipelines"])) for task, one in data.items())
    table = Table("Sensitivity of ECE and ACE to binning", "Pipeline", columns, groups, notes)
    return Study(NAME, {"tasks": data, "reference_bins": REFERENCE}, {"figure6_binning": table})


def _curves(counter: Counter, calibrator: Map | None, case: Case) -> Curves:
    tables = counter.count(case, calibrator)[-1]
    return {bins: regions["all"] for bins, regions in tables.reliability.items()}


def _pipeline(repeats: Sequence[Mapping[str, Curves]], draws: Draws) -> dict[str, dict[str, Any]]:
    columns = {
        bins: [
            np.array([expected_calibration_error(repeat[case_id][bins]) for case_id in sorted(repeat)])
            for repeat in repeats
        ]
        for bins in ECE_BINS
    }
    pooled = {
        bins: [
            average_calibration_error(total_of({case_id: curves[bins] for case_id, curves in repeat.items()}))
            for repeat in repeats
        ]
        for bins in ACE_BINS
    }
    return {
        "ece": {str(bins): asdict(estimate(values, draws)) for bins, values in columns.items()},
        "ace": {str(bins): asdict(over_repeats(values)) for bins, values in pooled.items()},
    }


def _changed_pairs(numbers: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """Return how many pairs of pipelines stand in another order than with the reference number of bins."""
    changed: dict[str, dict[str, int]] = {}
    for metric, reference in REFERENCE.items():
        counts = next(iter(numbers.values()))[metric]
        changed[metric] = {
            bins: sum(
                _above(numbers, metric, bins, a, b) != _above(numbers, metric, str(reference), a, b)
                for a, b in combinations(numbers, 2)
            )
            for bins in counts
        }
    return changed


def _above(numbers: Mapping[str, Any], metric: str, bins: str, first: str, second: str) -> bool:
    return bool(numbers[first][metric][bins]["value"] > numbers[second][metric][bins]["value"])


def _cells(numbers: Mapping[str, Mapping[str, Any]]) -> tuple[Cell, ...]:
    every = [one for metric in ("ece", "ace") for one in numbers[metric].values()]
    return tuple(Cell(one["value"], one["low"], one["high"]) for one in every)


def _note(task: str, changed: Mapping[str, Mapping[str, int]], pipelines: int) -> str:
    pairs = pipelines * (pipelines - 1) // 2
    most = {metric: max(counts.values()) for metric, counts in changed.items()}
    return (
        f"{task}: of {pairs} pairs of pipelines, at most {most['ece']} change places in ECE (against 50 bins) and "
        f"{most['ace']} in ACE (against 15)."
    )
