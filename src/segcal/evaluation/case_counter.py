"""From a case to numbers: its tables before and after calibration, and the running sums of each of the two stages.

Metrics of regions are the metrics of classes. They are read from the tables of two classes of one region, or from the
sum over regions. Two more are about regions together. One is the share of voxels whose label changed, the other the
share where an inner region is above its outer one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.cases.region_view import two_classes
from segcal.errors import InputError
from segcal.evaluation.slabs import calibrated_scores
from segcal.metrics import Metric
from segcal.metrics.base import Needs
from segcal.raters import Votes
from segcal.regions import Regions
from segcal.resample import Draws, percentile_interval, row_blocks
from segcal.statistics import BandCache, CaseTables, Counted, total_of
from segcal.statistics.additive import AdditiveTable, Confusion, unsummed
from segcal.summary import Difference, Estimate, difference, estimate
from segcal.types import IGNORED, Context

# A calibrator, or any function from logits (1, classes, *space) and a context to log-probabilities of that shape.
Map: TypeAlias = Calibrator | Callable[[Tensor, Context], Tensor]
LABEL_MAP = "label_map_flips"
NESTING = "nesting"


@dataclass(frozen=True)
class Together:
    """Voxels that count: all, those whose label changed in the label map, and pairs of regions, right and wrong."""

    voxels: int
    changed: int | None
    pairs: int
    turned: int


@dataclass(frozen=True)
class RegionTables:
    """The tables of a case of regions, by name, and what they say together."""

    each: dict[str, CaseTables]
    together: Together

    @property
    def all(self) -> CaseTables:
        """The tables of all regions, added up."""
        first, *others = self.each.values()
        return sum(others, start=first)

    @property
    def voxels(self) -> int:
        """Those that count, the same in all regions."""
        return next(iter(self.each.values())).voxels

    @property
    def confusion(self) -> Confusion:
        """That of the first region; all ignore the same voxels."""
        return next(iter(self.each.values())).confusion


@dataclass(frozen=True)
class RegionReader:
    """Reads the table of a metric from one region, or from all."""

    metric: Metric
    region: str | None

    def __call__(self, tables: RegionTables) -> Any:
        """Return the table that the metric reads."""
        return self.metric.part(tables.all if self.region is None else tables.each[self.region])


def region_metrics(metrics: Mapping[str, Metric], regions: Regions) -> dict[str, Metric]:
    """Return the metrics of all regions together, of the label map and of nesting, and of each region by its name."""
    found = {name: replace(metric, part=RegionReader(metric, None)) for name, metric in metrics.items()}  # type: ignore[arg-type]
    if any("reference" in metric.needs for metric in metrics.values()):
        title = "voxels whose label changed in the label map"
        found[LABEL_MAP] = Metric(title, _together, _changed_share, needs=("reference",))
    if regions.nested:
        found[NESTING] = Metric("pairs of regions of which the inner one is above the outer", _together, _turned_share)
    for region in regions.names:
        for name, metric in metrics.items():
            words = {"title": f"{metric.title}, {region}", "plain": metric.plain and f"{metric.plain}: {region}"}
            found[f"{name} ({region})"] = replace(metric, part=RegionReader(metric, region), **words)  # type: ignore[arg-type]
    return found


def _together(tables: Any) -> Together:
    found: Together = tables.together
    return found


def _changed_share(together: Together) -> float:
    return float("nan") if together.changed is None or not together.voxels else together.changed / together.voxels


def _turned_share(together: Together) -> float:
    return together.turned / together.pairs if together.pairs else float("nan")


class Counter:
    """Counts cases, making only the tables that the metrics need.

    Args:
        metrics: read from the tables of classes, or of each region.
        cache: keeps bands of label maps between runs.
        regions: those of the cases, if they have any.
    """

    def __init__(
        self, metrics: Mapping[str, Metric], cache: BandCache | None = None, regions: Regions | None = None
    ) -> None:
        self._needs, self._cache, self._regions = Needs.of(metrics.values()), cache, regions

    def count(self, case: Case, calibrator: Map | None) -> list[Any]:
        """Return the tables, of regions :class:`RegionTables`, before and, with a calibrator, after calibration."""
        if self._regions is not None:
            return self._count_regions(case, self._regions, calibrator)
        before, after = self.count_each(case, {} if calibrator is None else {"": calibrator})
        return [before.tables, *(one.tables for one in after.values())]

    def count_each(
        self, case: Case, calibrators: Mapping[str, Map], predict: bool = False
    ) -> tuple[Counted, dict[str, Counted]]:
        """Return what was counted before, and after each of several calibrators; with predictions, if asked for."""
        count = self._counting(case.id, _labels(case), case.spacing, case.votes)
        before = count(case.logits, predict=predict or bool(calibrators))
        after = {}
        for name, calibrator in calibrators.items():
            # Decisions are compared in the scores, and counting normalises them: no log-probabilities are written.
            foreign = not isinstance(calibrator, Calibrator)
            scores = _scores(calibrator, case)
            after[name] = count(scores, reference=before.prediction, predict=predict, normalised=foreign)
        return before, {name: _calibrated(counted) for name, counted in after.items()}

    def _counting(
        self, name: str, labels: Tensor, spacing: tuple[float, ...] | None, votes: Votes | None
    ) -> Callable[..., Counted]:
        """Return what counts scores against a label map."""
        bands = self._needs.bands(labels, name, self._cache)
        return partial(self._needs.count, labels=labels, bands=bands, spacing=spacing, votes=votes)

    def _count_regions(self, case: Case, regions: Regions, calibrator: Map | None) -> list[RegionTables]:
        labels = _labels(case)
        odds = None if calibrator is None else log_odds(calibrator, case)
        before: dict[str, CaseTables] = {}
        after: dict[str, CaseTables] = {}
        for number, region in enumerate(regions.names):
            votes = None if case.votes is None else case.votes.region(regions, number)
            truth = regions.truth(labels, number) if votes is None else votes.labels()
            count = self._counting(f"{case.id} {region}", truth, case.spacing, votes)
            plain = count(two_classes(case.logits[number]), predict=odds is not None)
            before[region] = plain.tables
            if odds is not None:
                own = count(two_classes(odds[number]), reference=plain.prediction)
                after[region] = _calibrated(own).tables
        counts = labels != IGNORED
        found = [RegionTables(before, _together_of(regions, case.logits, None, counts))]
        if odds is not None:
            found.append(RegionTables(after, _together_of(regions, odds, case.logits, counts)))
        return found


def _labels(case: Case) -> Tensor:
    if case.labels is None:
        raise InputError(
            f"labels of case {case.id!r} is missing, but every case needs labels to be measured. "
            "Open the cases with labels, or leave this one out."
        )
    return case.labels


def _calibrated(counted: Counted) -> Counted:
    """Return what was counted after a calibrator: the free energy is that of the input, and it has none of its own."""
    return counted._replace(tables=replace(counted.tables, free_energy=None))


def _together_of(regions: Regions, odds: Tensor, reference: Tensor | None, counts: Tensor) -> Together:
    voxels, changed = int(counts.sum()), None
    if reference is not None:
        maps = [regions.label_map(each > 0) for each in (odds, reference)]
        changed = int(((maps[0] != maps[1]) & counts).sum())
    return Together(voxels, changed, voxels * len(regions.nested), regions.violations(odds[:, counts]))


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


def log_odds(calibrator: Map, case: Case) -> Tensor:
    """Return the log-odds ``(regions, *space)`` that a calibrator gives a case, on the processor."""
    if isinstance(calibrator, PerRegion):
        return calibrated_scores(calibrator, case, device="cpu")
    if isinstance(calibrator, Calibrator):
        raise InputError(
            f"calibrator is a {calibrator.name} for {calibrator.num_classes} classes, but the cases have regions. Fit "
            "one to cases with these regions."
        )
    with torch.no_grad():
        log_probs = calibrator(case.logits[None], case.context)[0].double()
    return log_probs - torch.log(-torch.expm1(log_probs)).clamp(min=-1e3)


class Stage:
    """One number per case and metric and, for metrics that pool voxels over cases, the small table they read."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = metrics
        self.values: dict[str, dict[str, float]] = {name: {} for name in metrics}
        self.parts: dict[str, dict[str, AdditiveTable]] = {name: {} for name, one in metrics.items() if one.pooled}

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
    rest = unsummed(parts[0])
    names = [f.name for f in fields(parts[0]) if f.name not in rest]
    tables = {name: np.stack([np.asarray(getattr(parts[i], name)) for i in order]) for name in names}
    sums = {
        name: np.concatenate([np.tensordot(rows.astype(np.int64), table, 1) for rows in row_blocks(weights)])
        for name, table in ((name, np.add.reduceat(table, starts)) for name, table in tables.items())
    }
    kind = type(parts[0])
    found = [value(kind(**rest, **{name: column[i] for name, column in sums.items()})) for i in range(len(weights))]
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
