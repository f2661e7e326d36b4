"""The rows of the study as numbers: one array of case values a seed, estimates, paired differences and ranks.

The test cases of a task are the same for all seeds, and intervals draw them so.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.stats import rankdata

from paper.loss_study.draws import shared_draws
from paper.loss_study.plan import MAIN, Unit
from segcal.report.table import Cell
from segcal.summary import Difference, Estimate, difference, estimate

Better: TypeAlias = Literal["higher", "lower"]
# How the main metrics are ranked.
DIRECTIONS = {"dice": "higher", "hd95": "lower", "ece_foreground": "lower", "cece_foreground": "lower"}


# The metrics that pages show of a network as trained, and of one that is calibrated or sees corrupted cases.
AS_TRAINED = ("dice", "hd95", "ece_foreground", "cece_foreground", "ece_union", "cece_union", "nll", "ece")
CALIBRATED = ("nll", "ece")
# What figures show of the networks of the main table.
DRAWN = ("shown_curve", "logit_profile", "logit_histograms")


def read_by_pages(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a row that pages are made from."""
    values = {
        stage: {
            pipeline: {name: own[name] for name in _shown(stage, pipeline) if name in own}
            for pipeline, own in pipelines.items()
        }
        for stage, pipelines in row["values"].items()
    }
    drawn = DRAWN if Unit(**row["unit"]).main else ()
    return {name: row[name] for name in ("schema", "unit", *drawn)} | {"values": values}


def _shown(stage: str, pipeline: str) -> Sequence[str]:
    return AS_TRAINED if (stage, pipeline) == ("clean", "none") else CALIBRATED


class Key(NamedTuple):
    """Networks that differ by their seed alone."""

    task: str
    variant: str
    backbone: str = "unet"
    share: int = 100


class Results:
    """All rows of the study.

    Args:
        rows: as :func:`paper.loss_study.rows.read_lines` returns them.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows: dict[Key, dict[int, Mapping[str, Any]]] = {}
        self._differences: dict[tuple[object, ...], Difference | None] = {}
        self._estimates: dict[tuple[object, ...], Estimate | None] = {}
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
        asked = (key, metric, stage, pipeline, seeds if seeds is None else tuple(seeds))
        if asked not in self._estimates:
            column = self.column(key, metric, stage, pipeline, seeds)
            self._estimates[asked] = estimate(column, shared_draws(column)) if column else None
        return self._estimates[asked]

    def difference(
        self, first: Key, second: Key, metric: str, stage: str = "clean", pipeline: str = "none"
    ) -> Difference | None:
        """Return the paired difference second - first, over the seeds that both have."""
        seeds = self.seeds(first, second)
        better: Better = "higher" if metric == "dice" else "lower"
        return self._paired((first, metric, stage, pipeline, seeds), (second, metric, stage, pipeline, seeds), better)

    def change(self, key: Key, metric: str, stage: str, pipeline: str) -> Difference | None:
        """Return the paired difference that a calibration makes."""
        return self._paired((key, metric, stage, "none"), (key, metric, stage, pipeline), "lower")

    def _paired(self, first: tuple[Any, ...], second: tuple[Any, ...], better: Better) -> Difference | None:
        """Return the paired difference of two columns, computed once."""
        asked = (*first[:4], *second[:4])
        if asked not in self._differences:
            one, two = self.column(*first), self.column(*second)
            found = difference(one, two, shared_draws(one), better) if one and two else None
            self._differences[asked] = found
        return self._differences[asked]

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
