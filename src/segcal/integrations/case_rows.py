"""A metric of segcal as vectors that add: what frameworks carry over batches and ranks.

Of each case there is one vector of int64 counts and one of float64 sums. Both add over cases, batches and ranks in any
grouping, counts exactly, far beyond the 2^24 voxels at which float32 counts stop. They hold

- whether the metric is defined, and its number, for a mean over cases; or the table it is read from, for one number of
  all voxels;
- the reliability curve of the top label, for a diagram.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS, find_metrics
from segcal.metrics.tensors import Meter
from segcal.statistics.case import CaseTables, Confusion, Likelihood, Ranking
from segcal.statistics.reliability import Curve

# Tables that add entry by entry.
PLAIN = (Curve, Confusion, Likelihood, Ranking)
BINS = 15


class CountedRow(NamedTuple):
    """What is kept of one case, or of many added up."""

    counts: np.ndarray
    sums: np.ndarray


class CaseRows:
    """Turns batches into rows, and sums of rows into a number.

    Args:
        name: of :data:`segcal.METRICS`.
        num_classes: how many classes.
        kind: what predictions are: "logits", "probs" or "sigmoid".
        bins: of confidence, instead of the metric's own.
        ignore: the label that does not count.
        average: "cases" or "voxels"; None as the metric says.
    """

    def __init__(
        self,
        name: str,
        num_classes: int,
        kind: str,
        bins: int | None = None,
        ignore: int | None = None,
        average: str | None = None,
    ) -> None:
        (self.metric,) = find_metrics((name,)).values()
        if "reference" in self.metric.needs:
            listed = ", ".join(key for key, one in METRICS.items() if "reference" not in one.needs)
            raise InputError(f"{name} compares two predictions, but one is given here. Choose one of: {listed}.")
        self.metric = self.metric if bins is None else self.metric.with_bins(bins)
        self.name, self.bins = name, self.metric.bins or BINS
        self._meter = Meter({name: self.metric, "ece": METRICS["ece"].with_bins(self.bins)}, kind, ignore, average)
        self._pooled = self._meter.is_pooled(self.metric)
        one_voxel = torch.full((1, 1), 0.5) if kind == "sigmoid" else torch.full((1, num_classes, 1), 1 / num_classes)
        blank = Meter(self._meter.metrics, "sigmoid" if kind == "sigmoid" else "probs").tables(
            one_voxel, torch.zeros(1, 1, dtype=torch.int64)
        )[0]
        self._template = self.metric.part(blank)
        if self._pooled and not isinstance(self._template, PLAIN):
            raise InputError(
                f"average is 'voxels', but the {self.metric.title} belongs to one case each. Leave it out."
            )
        first = self._row(blank)
        self.empty = CountedRow(np.zeros_like(first.counts), np.zeros_like(first.sums))

    def rows(self, predictions: object, labels: object) -> list[CountedRow]:
        """Return one row per case of a batch ``(batch, classes, *space)`` with labels ``(batch, *space)``."""
        found = [self._row(tables) for tables in self._meter.tables(predictions, labels)]
        for row in found:
            if row.counts.shape != self.empty.counts.shape:
                raise InputError("predictions have another number of classes than num_classes, but both must agree.")
        return found

    def value(self, row: CountedRow) -> float:
        """Return the number of a sum of rows; NaN where it is not defined."""
        counts, sums = row.counts[: -2 * self.bins], row.sums[: -self.bins]
        if not self._pooled:
            return float(sums[0] / counts[0]) if counts[0] else float("nan")
        number = self.metric.of_part(_joined(self._template, counts, sums))
        return float("nan") if number is None else number

    def curve(self, row: CountedRow) -> Curve:
        """Return the reliability curve of a sum of rows."""
        count, right = row.counts[-2 * self.bins :].reshape(2, -1)
        return Curve(count, right, row.sums[-self.bins :])

    def _row(self, tables: CaseTables) -> CountedRow:
        part = self.metric.part(tables)
        if self._pooled:
            counts, sums = _apart(part)
        else:
            number = self.metric.of_part(part)
            counts, sums = [np.array([number is not None])], [np.array([number or 0.0])]
        curve = tables.reliability[self.bins]["all"]
        return CountedRow(
            np.concatenate([*counts, curve.count, curve.right]).astype(np.int64),
            np.concatenate([*sums, curve.confidence]).astype(np.float64),
        )


def _apart(part: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the counts and the sums of a table, field by field."""
    values = [np.asarray(getattr(part, field.name)).reshape(-1) for field in fields(part)]
    return [v for v in values if v.dtype.kind == "i"], [v for v in values if v.dtype.kind == "f"]


def _joined(template: Any, counts: np.ndarray, sums: np.ndarray) -> Any:
    """Return the table whose fields stand one after the other in two vectors."""
    made, place = {}, {"i": 0, "f": 0}
    for field in fields(template):
        like = np.asarray(getattr(template, field.name))
        source, start = (counts if like.dtype.kind == "i" else sums), place[like.dtype.kind]
        values = source[start : start + like.size].reshape(like.shape)
        made[field.name] = values if like.ndim else values.item()
        place[like.dtype.kind] = start + like.size
    return type(template)(**made)
