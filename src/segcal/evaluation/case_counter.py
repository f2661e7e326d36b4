"""From a case to numbers: its tables before and after calibration, and the running sums of each of the two stages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.errors import InputError
from segcal.evaluation.slabs import calibrated_scores
from segcal.metrics import Metric
from segcal.metrics.base import Needs
from segcal.resample import Draws, percentile_interval, row_blocks
from segcal.statistics import BandCache, CaseTables, Counted, total_of
from segcal.summary import Difference, Estimate, difference, estimate
from segcal.types import Context

# A calibrator, or any function from logits (1, classes, *space) and a context to log-probabilities of that shape.
Map: TypeAlias = Calibrator | Callable[[Tensor, Context], Tensor]


class Counter:
    """Counts cases, making only the tables that the metrics need; a cache keeps bands of label maps between runs."""

    def __init__(self, metrics: Mapping[str, Metric], cache: BandCache | None = None) -> None:
        self._needs = Needs.of(metrics.values())
        self._cache = cache

    def count(self, case: Case, calibrator: Map | None) -> list[CaseTables]:
        """Return the tables before and, with a calibrator, after calibration."""
        before, after = self.count_each(case, {} if calibrator is None else {"": calibrator})
        return [before.tables, *(one.tables for one in after.values())]

    def count_each(
        self, case: Case, calibrators: Mapping[str, Map], predict: bool = False
    ) -> tuple[Counted, dict[str, Counted]]:
        """Return what was counted before, and after each of several calibrators; with predictions, if asked for."""
        labels, needs = case.labels, self._needs
        if labels is None:
            raise InputError(
                f"labels of case {case.id!r} is missing, but every case needs labels to be measured. "
                "Open the cases with labels, or leave this one out."
            )
        bands, size = needs.bands(labels, case.id, self._cache), case.spacing
        before = needs.count(case.logits, labels, bands, None, predict or bool(calibrators), size)
        after = {}
        for name, calibrator in calibrators.items():
            # Decisions are compared in the scores, and counting normalises them: no log-probabilities are written.
            scores = _scores(calibrator, case)
            foreign = not isinstance(calibrator, Calibrator)
            counted = needs.count(scores, labels, bands, before.prediction, predict, size, normalised=foreign)
            # The free energy is that of the input; what a calibrator returns has none of its own.
            after[name] = counted._replace(tables=replace(counted.tables, free_energy=None))
        return before, after


def _scores(calibrator: Map, case: Case) -> Tensor:
    if isinstance(calibrator, Calibrator):
        return calibrated_scores(calibrator, case, case.logits.device)  # a case need not fit where one slab does
    with torch.no_grad():
        found = calibrator(case.logits[None], case.context)
    if not isinstance(found, Tensor) or found.shape != (1, *case.logits.shape) or not found.is_floating_point():
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"calibrator returned {what}, but log-probabilities of the shape {(1, *case.logits.shape)} of the logits "
            "are needed. Correct the function."
        )
    return found[0]


class Stage:
    """One number per case and metric and, for metrics that pool voxels over cases, the small table they read."""

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
        """Return one number per case, in the order of the ids."""
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


def pooled_replicates(parts: Sequence[Any], value: Callable[[Any], float | None], draws: Draws) -> np.ndarray:
    """Return the replicates of a number that is read from the sum of the tables of all cases of a single repeat.

    A table is a dataclass of arrays; `value` reads the number from a sum of them.
    """
    weights, order = draws.weights, np.argsort(draws.index[0], kind="stable")
    starts = np.searchsorted(draws.index[0][order], np.arange(draws.groups))
    tables = {f.name: np.stack([np.asarray(getattr(parts[i], f.name)) for i in order]) for f in fields(parts[0])}
    sums = {
        name: np.concatenate([np.tensordot(rows.astype(np.int64), table, 1) for rows in row_blocks(weights)])
        for name, table in ((name, np.add.reduceat(table, starts)) for name, table in tables.items())
    }
    kind = type(parts[0])
    found = [value(kind(**{name: column[i] for name, column in sums.items()})) for i in range(len(weights))]
    return np.array([np.nan if number is None else number for number in found])


def summarise(
    stages: Sequence[Stage], draws: Draws, level: float
) -> tuple[list[dict[str, Estimate]], dict[str, Difference]]:
    """Return the estimates of each stage, and the change from the first to the last."""
    estimates: list[dict[str, Estimate]] = [{} for _ in stages]
    changes = {}
    for name, metric in stages[0].metrics.items():
        columns = [stage.column(name) for stage in stages]
        found = [estimate([column], draws, level, metric.bounds) for column in columns]
        change = difference([columns[0]], [columns[-1]], draws, metric.better, level)
        if metric.pooled:
            replicates = [stage.replicates(name, draws) for stage in stages]
            values = [stage.pooled(name) for stage in stages]
            ends = [
                percentile_interval(drawn, level, draws.groups)
                for drawn in [*replicates, replicates[-1] - replicates[0]]
            ]
            found = [
                msgspec.structs.replace(one, value=value, low=low, high=high)
                for one, value, (low, high) in zip(found, values, ends[:-1], strict=True)
            ]
            first, last = values[0], values[-1]
            gap = None if first is None or last is None else last - first
            change = msgspec.structs.replace(change, value=gap, low=ends[-1][0], high=ends[-1][1])
        for target, one in zip(estimates, found, strict=True):
            target[name] = one
        changes[name] = change
    return estimates, changes
