"""A metric of segcal as vectors that add: what frameworks carry over batches and ranks.

Of each case there is one vector of int64 counts and one of float64 sums. Both add over cases, batches and ranks in any
grouping, counts exactly, far beyond the 2^24 voxels at which float32 counts stop. They hold

- for a mean over cases, whether the metric is defined, and its number; for one number of all voxels, its table;
- the reliability curve of the top label, for a diagram.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS, find_metrics
from segcal.metrics.tensors import CaseMean, Meter
from segcal.statistics.additive import Confusion, Likelihood, Ranking
from segcal.statistics.case import CaseTables
from segcal.statistics.reliability import Curve

# Tables that add entry by entry.
PLAIN = (CaseMean, Curve, Confusion, Likelihood, Ranking)
BINS = 15


class CountedRow(NamedTuple):
    """The row of one case, or of many added up."""

    counts: np.ndarray
    sums: np.ndarray


class CaseRows:
    """Turns batches into rows, and sums of rows into a number; the arguments are those of the frameworks' metrics."""

    def __init__(
        self,
        name: str,
        num_classes: int,
        kind: str,
        bins: int | None = None,
        ignore: int | None = None,
        average: str | None = None,
        **raters: Any,
    ) -> None:
        (self.metric,) = find_metrics((name,)).values()
        if "reference" in self.metric.needs:
            listed = ", ".join(key for key, one in METRICS.items() if "reference" not in one.needs)
            raise InputError(f"{name} compares two predictions, but one is given here. Choose one of: {listed}.")
        self.metric = self.metric if bins is None else self.metric.with_bins(bins)
        self.name, self.bins = name, self.metric.bins or BINS
        both = {name: self.metric, "ece": METRICS["ece"].with_bins(self.bins)}
        self._meter = Meter(both, kind, ignore, average, **raters)
        self._meter.metric(name)
        one_voxel = torch.full((1, 1), 0.5) if kind == "sigmoid" else torch.full((1, num_classes, 1), 1 / num_classes)
        declared = Meter(self._meter.metrics, "sigmoid" if kind == "sigmoid" else "probs")
        (blank,) = declared.tables(one_voxel, torch.zeros(1, 1, dtype=torch.int64))
        self._part, self._curve = self._kept(blank)
        if not isinstance(self._part, PLAIN):
            raise InputError(
                f"average is 'voxels', but the {self.metric.title} belongs to one case each. Leave it out."
            )
        self.empty = CountedRow(*(np.zeros_like(each) for each in self._row(blank)))

    def rows(self, predictions: object, labels: object) -> list[CountedRow]:
        """Return one row per case of a batch ``(batch, classes, *space)`` with labels ``(batch, *space)``."""
        found = [self._row(tables) for tables in self._meter.tables(predictions, labels)]
        for row in found:
            if row.counts.shape != self.empty.counts.shape:
                raise InputError("predictions have another number of classes than num_classes, but both must agree.")
        return found

    def value(self, row: CountedRow) -> float:
        """Return the number of a sum of rows; NaN where it is not defined."""
        number = self._meter.value(self.name, self._part.unpacked(*row))
        return float("nan") if number is None else number

    def curve(self, row: CountedRow) -> Curve:
        """Return the reliability curve of a sum of rows."""
        return self._curve.unpacked(row.counts[-2 * self.bins :], row.sums[-self.bins :] * self._meter.votes)

    def _kept(self, tables: CaseTables) -> tuple[Any, Curve]:
        return self._meter.part(self.name, tables), tables.reliability[self.bins]["all"]

    def _row(self, tables: CaseTables) -> CountedRow:
        counts, sums = zip(*(each.packed() for each in self._kept(tables)), strict=True)
        return CountedRow(np.concatenate(counts), np.concatenate(sums))
