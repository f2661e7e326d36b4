"""From a case of regions to numbers: the tables of two classes of every region, and what they say together.

Metrics of regions are the metrics of classes, read from the tables of one region, or from those of all regions added
up (every voxel counts once for each region). Two more are about regions together: the share of voxels whose label
changed in the label map, and the share at which an inner region is above the one it lies in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.cases.region_view import two_classes
from segcal.errors import InputError
from segcal.evaluation.case_counter import Counter, Map
from segcal.evaluation.slabs import calibrated_scores
from segcal.metrics import Metric
from segcal.regions import Regions
from segcal.statistics import BandCache, CaseTables
from segcal.statistics.additive import Confusion, Likelihood
from segcal.types import IGNORED

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
    def likelihood(self) -> Likelihood:
        """That of the first region; all have the same voxels."""
        return next(iter(self.each.values())).likelihood

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


class RegionCounter(Counter):
    """Counts cases of regions."""

    def __init__(self, metrics: Mapping[str, Metric], regions: Regions, cache: BandCache | None = None) -> None:
        super().__init__(metrics, cache)
        self._regions = regions

    def count(self, case: Case, calibrator: Map | None) -> list[RegionTables]:  # type: ignore[override]
        """Return the tables before and, with a calibrator, after calibration."""
        before, after = self.count_regions(case, {} if calibrator is None else {"": calibrator})
        return [before, *after.values()]

    def count_regions(self, case: Case, calibrators: Mapping[str, Map]) -> tuple[RegionTables, dict[str, RegionTables]]:
        """Return the tables before, and after each of several calibrators."""
        if case.labels is None:
            raise InputError(
                f"labels of case {case.id!r} is missing, but every case needs labels to be measured. "
                "Open the cases with labels, or leave this one out."
            )
        odds = {name: log_odds(calibrator, case) for name, calibrator in calibrators.items()}
        before: dict[str, CaseTables] = {}
        after: dict[str, dict[str, CaseTables]] = {name: {} for name in odds}
        for number, region in enumerate(self._regions.names):
            truth, needs = self._regions.truth(case.labels, number), self._needs
            bands = needs.bands(truth, f"{case.id} {region}", self._cache)
            plain = needs.count(two_classes(case.logits[number]), truth, bands, None, bool(odds), case.spacing)
            before[region] = plain.tables
            for name, found in odds.items():
                own = needs.count(two_classes(found[number]), truth, bands, plain.prediction, False, case.spacing)
                after[name][region] = replace(own.tables, free_energy=None)
        counts = case.labels != IGNORED
        return RegionTables(before, self._look(case.logits, None, counts)), {
            name: RegionTables(after[name], self._look(found, case.logits, counts)) for name, found in odds.items()
        }

    def _look(self, odds: Tensor, reference: Tensor | None, counts: Tensor) -> Together:
        voxels, regions = int(counts.sum()), self._regions
        changed = None
        if reference is not None:
            maps = [regions.label_map(each > 0) for each in (odds, reference)]
            changed = int(((maps[0] != maps[1]) & counts).sum())
        return Together(voxels, changed, voxels * len(regions.nested), regions.violations(odds[:, counts]))


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
