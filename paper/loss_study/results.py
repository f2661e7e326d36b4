"""The rows of the study as numbers: one array of case values a seed, estimates, paired differences and ranks.

The test cases of a task are the same for all seeds, and intervals draw them so.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from paper.loss_study.draws import shared_draws
from paper.loss_study.plan import MAIN
from segcal.report.table import Cell
from segcal.summary import Difference, Estimate, difference, estimate

# How the main metrics are ranked.
DIRECTIONS = {"dice": "higher", "hd95": "lower", "ece_foreground": "lower", "cece_foreground": "lower"}


class Key(NamedTuple):
    """Networks that differ by their seed alone."""

    task: str
    variant: str
    backbone: str = "unet"
    share: int = 100


class Results:
    """All rows of the study.

    Args:
        rows: as :func:`paper.loss_study.rows.read_rows` returns them.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows: dict[Key, dict[int, Mapping[str, Any]]] = {}
        for row in rows:
            unit = row["unit"]
            key = Key(unit["task"], unit["variant"], unit["backbone"], unit["share"])
            self.rows.setdefault(key, {})[unit["seed"]] = row

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks, in the order of the plan."""
        found = {key.task for key in self.rows}
        return tuple(task for task in ("roads", "tumour", "streets") if task in found)

    def seeds(self, *keys: Key) -> list[int]:
        """Return the seeds that all of these have."""
        if not keys or any(key not in self.rows for key in keys):
            return []
        return sorted(set.intersection(*(set(self.rows[key]) for key in keys)))

    def common(self, keys: Iterable[Key]) -> list[int]:
        """Return the seeds that all of these have that exist: a comparison must rest on the same seeds."""
        return self.seeds(*(key for key in keys if key in self.rows))

    def column(
        self, key: Key, metric: str, stage: str = "clean", pipeline: str = "none", seeds: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """Return one array per seed, one value per case; empty where something is missing."""
        found = []
        for seed in self.seeds(key) if seeds is None else seeds:
            if seed not in self.rows.get(key, {}):
                return []
            own = self.rows[key][seed]["values"].get(stage, {}).get(pipeline, {}).get(metric)
            if own is None:
                return []
            found.append(np.array([np.nan if value is None else value for value in own]))
        return found

    def estimate(
        self, key: Key, metric: str, stage: str = "clean", pipeline: str = "none", seeds: Sequence[int] | None = None
    ) -> Estimate | None:
        """Return the mean over seeds and cases with its interval."""
        column = self.column(key, metric, stage, pipeline, seeds)
        return estimate(column, shared_draws(column)) if column else None

    def difference(
        self, first: Key, second: Key, metric: str, stage: str = "clean", pipeline: str = "none"
    ) -> Difference | None:
        """Return the paired difference second - first, over the seeds that both have."""
        seeds = self.seeds(first, second)
        one, two = (self.column(key, metric, stage, pipeline, seeds) for key in (first, second))
        if not one or not two:
            return None
        better = "higher" if metric == "dice" else "lower"
        return difference(one, two, shared_draws(one), better)  # type: ignore[arg-type]

    def change(self, key: Key, metric: str, stage: str, pipeline: str) -> Difference | None:
        """Return the paired difference that a calibration makes."""
        before, after = (self.column(key, metric, stage, name) for name in ("none", pipeline))
        return difference(before, after, shared_draws(before), "lower") if before and after else None

    def cell(
        self, key: Key, metric: str, stage: str = "clean", pipeline: str = "none", seeds: Sequence[int] | None = None
    ) -> Cell:
        """Return the estimate as a cell of a table."""
        found = self.estimate(key, metric, stage, pipeline, seeds)
        return Cell(None) if found is None else Cell(found.value, found.low, found.high)

    def mean(
        self, key: Key, metric: str, stage: str = "clean", pipeline: str = "none", seeds: Sequence[int] | None = None
    ) -> float | None:
        """Return the mean over seeds of the mean over cases."""
        column = self.column(key, metric, stage, pipeline, seeds)
        return float(np.mean([np.nanmean(values) for values in column])) if column else None

    def sum_ranks(self, variants: Sequence[str] = MAIN) -> dict[str, dict[str, float]]:
        """Return, for each metric, the sum over tasks of the rank of a variant's mean (1 is best)."""
        ranks: dict[str, dict[str, float]] = {variant: {} for variant in variants}
        for metric, better in DIRECTIONS.items():
            means = np.array([[self.mean(Key(task, v), metric) for v in variants] for task in self.tasks], float)
            order = rankdata(-means if better == "higher" else means, axis=1).sum(0)
            for variant, value in zip(variants, order, strict=True):
                ranks[variant][metric] = float(value)
        return ranks

    def case_ranks(self, variants: Sequence[str] = MAIN) -> dict[str, dict[str, float]]:
        """Return, for each metric, the mean over tasks, seeds and cases of the rank within a case (1 is best)."""
        ranks: dict[str, dict[str, float]] = {variant: {} for variant in variants}
        for metric, better in DIRECTIONS.items():
            parts = []
            for task in self.tasks:
                keys = [Key(task, variant) for variant in variants]
                seeds = self.seeds(*keys)
                values = np.stack([np.concatenate(self.column(key, metric, seeds=seeds)) for key in keys])
                values = values[:, ~np.isnan(values).any(0)]
                parts.append(rankdata(-values if better == "higher" else values, axis=0).mean(1))
            for variant, value in zip(variants, np.mean(parts, axis=0), strict=True):
                ranks[variant][metric] = float(value)
        return ranks
