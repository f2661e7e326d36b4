"""What is kept of a test case: its numbers, and small tables that add up.

Besides the protocol's metrics a row has the calibration error with other numbers of bins (Fig. 6), and where flips lie:
voxels and flips in each band of distance from the boundary (Fig. 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from segcal.calibrators import Calibrator
from segcal.cases import Case
from segcal.evaluation.case_counter import Counter
from segcal.kernels.raw_tables import BENEFICIAL, HARMFUL, NEUTRAL
from segcal.metrics import METRICS, Metric, find_metrics
from segcal.metrics.readers import region_curve
from segcal.metrics.reliability import average_calibration_error, expected_calibration_error
from segcal.statistics import BandCache, CaseTables, Counted
from segcal.statistics.additive import Table
from segcal.statistics.reliability import Curve
from segcal.statistics.spread import CurveSpread

# Bins of reliability diagrams, and what they are drawn of.
FIGURE_BINS = 15
REGIONS = ("all", "foreground")
ECE_BINS = (20, 30, 40)
ACE_BINS = (20, 30, 40)


@dataclass(frozen=True)
class FlipBands(Table):
    """Flips by distance from the boundary; the last band holds voxels of maps without a boundary.

    Attributes:
        voxels: ``(bands + 1,)`` int64, the voxels that count.
        flips: ``(bands + 1, 3)`` int64: harmful, beneficial, neutral.
    """

    voxels: np.ndarray
    flips: np.ndarray


@dataclass
class Kept:
    """What is kept of the test cases of one unit: rows, and the sums of their tables.

    Sums are taken in the order in which cases come; whoever counts goes through them in the order of their ids, so that
    the result is the same to the last bit.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    tables: CaseTables | None = None
    flip_bands: FlipBands | None = None
    spread: dict[str, CurveSpread] = field(default_factory=dict)

    def add(self, row: dict[str, Any], tables: CaseTables, flip_bands: FlipBands) -> None:
        """Keep one case."""
        self.rows.append(row)
        self.tables = tables if self.tables is None else self.tables + tables
        self.flip_bands = flip_bands if self.flip_bands is None else self.flip_bands + flip_bands
        for name, curve in curves_of(tables).items():
            own = CurveSpread.of(curve)
            self.spread[name] = self.spread[name] + own if name in self.spread else own

    def total(self) -> dict[str, Any]:
        """Return the tables of all cases together, as plain data."""
        assert self.tables is not None
        assert self.flip_bands is not None
        spread = {name: one.to_plain() for name, one in self.spread.items()}
        return {"tables": self.tables.to_plain(), "flip_bands": self.flip_bands.to_plain(), "spread": spread}


def benchmark_metrics(names: tuple[str, ...], background: bool) -> dict[str, Metric]:
    """Return the metrics of a task, and those that the binning study reads.

    Args:
        names: names of metrics.
        background: whether class 0 is what is left over; if not, Dice counts all classes.
    """
    chosen = dict(find_metrics(names))
    if "dice" in chosen and not background:
        chosen["dice"] = METRICS["dice"].with_options(include_background=True)
    for bins in ECE_BINS:
        title, part = f"calibration error, {bins} bins", region_curve("all", bins)
        chosen[f"ece_{bins}"] = Metric(title, part, expected_calibration_error, bins=bins)
    for bins in ACE_BINS:
        title, part = f"average calibration error, {bins} bins", region_curve("all", bins)
        chosen[f"ace_{bins}"] = Metric(title, part, average_calibration_error, pooled=True, bins=bins)
    return chosen


class CaseCounter:
    """Counts test cases for several pipelines at a time.

    Args:
        metrics: the metrics.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._bands = BandCache(max_bytes=0)  # of one case, for all its pipelines
        # Bands and class-wise tables are always kept: figures read them, whatever metrics were asked for.
        needed = {name: METRICS[name] for name in ("ba_ece", "cece", "ece", "ace")}
        self._counter = Counter({**needed, **metrics}, self._bands)

    def add(self, case: Case, calibrators: Mapping[str, Calibrator], kept: Mapping[str, Kept]) -> None:
        """Count a case with every calibrator, and keep it under the calibrator's name."""
        before, after = self._counter.count_each(case, calibrators, predict=True)
        for name, counted in after.items():
            tables = replace(counted.tables, free_energy=before.tables.free_energy)
            flips = self._flip_bands(case, before, counted)
            kept[name].add(self._row(case, tables, flips), thinned(tables), flips)

    def _row(self, case: Case, tables: CaseTables, flips: FlipBands) -> dict[str, Any]:
        parts = {name: metric.part(tables) for name, metric in self._metrics.items()}
        pooled = {name for name, metric in self._metrics.items() if metric.pooled and not name.startswith("ace_")}
        return {
            "case": case.id,
            "group": case.group,
            "voxels": tables.likelihood.voxels,
            "ignored": tables.confusion.ignored,
            "metrics": {name: metric.of_part(parts[name]) for name, metric in self._metrics.items()},
            "parts": {name: parts[name].to_plain() for name in sorted(pooled) if parts[name] is not None},
            "flip_bands": flips.to_plain(),
        }

    def _flip_bands(self, case: Case, before: Counted, after: Counted) -> FlipBands:
        assert case.labels is not None
        assert before.prediction is not None
        assert after.prediction is not None
        labels = case.labels.numpy().reshape(-1)
        old, new = before.prediction.reshape(-1), after.prediction.reshape(-1)
        bands = self._bands.bands(case.id, case.labels.numpy())
        size, counts = len(bands.edges) + 1, labels >= 0
        voxels = np.bincount(bands.code[counts], minlength=size)
        flips = np.zeros((size, 3), np.int64)
        where = np.flatnonzero(counts & (old != new))
        kind = np.full(len(where), NEUTRAL)
        kind[old[where] == labels[where]] = HARMFUL
        kind[new[where] == labels[where]] = BENEFICIAL
        np.add.at(flips, (bands.code[where], kind), 1)
        return FlipBands(voxels.astype(np.int64), flips)


def thinned(tables: CaseTables) -> CaseTables:
    """Return the tables that figures need: reliability of all voxels and of foreground, one binning of the bands."""
    bands = tables.bands
    return replace(
        tables,
        reliability={
            bins: {name: regions[name] for name in (REGIONS if bins == FIGURE_BINS else REGIONS[:1])}
            for bins, regions in tables.reliability.items()
        },
        classwise=None if tables.classwise is None else {"all": tables.classwise["all"]},
        bands=None if bands is None else replace(bands, curves={FIGURE_BINS: bands.curves[FIGURE_BINS]}),
        surface=None,
    )


def curves_of(tables: CaseTables) -> dict[str, Curve]:
    """Return the curves of reliability diagrams that are there: "all", "foreground", "classes" and "bands"."""
    found = {name: curve for name, curve in tables.reliability[FIGURE_BINS].items() if name in REGIONS}
    if tables.classwise is not None:
        found["classes"] = tables.classwise["all"]
    if tables.bands is not None:
        found["bands"] = tables.bands.curves[FIGURE_BINS]
    return found
