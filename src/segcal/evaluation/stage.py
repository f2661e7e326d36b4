"""What is kept of the cases of one stage (before or after calibration), and what it amounts to."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from segcal.metrics import Metric
from segcal.statistics import CaseTables, total_of
from segcal.summary import Difference, Draws, Estimate, difference, estimate, percentile_interval, pooled_replicates


class Stage:
    """One number a case and metric and, for metrics that pool voxels over cases, the small table they read.

    Args:
        metrics: the metrics to read.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = metrics
        self.values: dict[str, dict[str, float]] = {name: {} for name in metrics}
        self.parts: dict[str, dict[str, Any]] = {name: {} for name, metric in metrics.items() if metric.pooled}

    def add(self, case_id: str, tables: CaseTables) -> dict[str, float | None]:
        """Read the metrics of one case, keep them, and return them."""
        numbers: dict[str, float | None] = {}
        for name, metric in self.metrics.items():
            part = metric.part(tables)
            number = metric.of_part(part)
            numbers[name] = number
            self.values[name][case_id] = np.nan if number is None else number
            if metric.pooled and part is not None:
                self.parts[name][case_id] = part
        return numbers

    def column(self, name: str) -> np.ndarray:
        """Return one number a case, in the order of the ids."""
        return np.array([self.values[name][case_id] for case_id in sorted(self.values[name])])

    def pooled(self, name: str) -> float | None:
        """Return the number of all cases together; None if a case lacks the table."""
        parts = self.parts[name]
        return self.metrics[name].of_part(total_of(parts)) if len(parts) == len(self.values[name]) else None

    def replicates(self, name: str, draws: Draws) -> np.ndarray:
        """Return the bootstrap replicates of a pooled number."""
        parts = self.parts[name]
        if len(parts) < len(self.values[name]):
            return np.full(len(draws.repeat), np.nan)
        return pooled_replicates([parts[case_id] for case_id in sorted(parts)], self.metrics[name].of_part, draws)


def summarise(
    stages: Sequence[Stage], draws: Draws, level: float
) -> tuple[list[dict[str, Estimate]], dict[str, Difference]]:
    """Return the estimates of each stage, and the change from the first to the last."""
    estimates: list[dict[str, Estimate]] = [{} for _ in stages]
    changes = {}
    for name, metric in stages[0].metrics.items():
        columns = [stage.column(name) for stage in stages]
        found = [estimate([column], draws, level) for column in columns]
        change = difference([columns[0]], [columns[-1]], draws, metric.better, level)
        if metric.pooled:
            replicates = [stage.replicates(name, draws) for stage in stages]
            values = [stage.pooled(name) for stage in stages]
            ends = [percentile_interval(drawn, level) for drawn in replicates]
            found = [
                replace(one, value=value, low=low, high=high)
                for one, value, (low, high) in zip(found, values, ends, strict=True)
            ]
            first, last = values[0], values[-1]
            low, high = percentile_interval(replicates[-1] - replicates[0], level)
            gap = None if first is None or last is None else last - first
            change = replace(change, value=gap, low=low, high=high)
        for target, one in zip(estimates, found, strict=True):
            target[name] = one
        changes[name] = change
    return estimates, changes
