"""The tables that some metrics need, of one case: nothing that none of them reads is counted."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from segcal.metrics.base import Metric
from segcal.statistics import BandCache, Counted, LabelBands, count_logits, find_bands, surface_distances
from segcal.statistics.case import CLASS_BINS
from segcal.statistics.voxel_sample import sample_voxels


@dataclass(frozen=True)
class Needs:
    """What is counted for some metrics.

    Attributes:
        tables: those that are only made when asked for.
        bins: the numbers of bins of confidence.
    """

    tables: frozenset[str]
    bins: tuple[int, ...]

    @classmethod
    def of(cls, metrics: Iterable[Metric]) -> Self:
        """Return the needs of all of these together."""
        metrics = list(metrics)
        bins = tuple(sorted({metric.bins for metric in metrics if metric.bins})) or (15,)
        return cls(frozenset(need for metric in metrics for need in metric.needs), bins)

    def bands(self, labels: Tensor, case_id: str = "", cache: BandCache | None = None) -> LabelBands | None:
        """Return the bands of a label map, if they are needed."""
        if "bands" not in self.tables:
            return None
        return find_bands(labels.numpy()) if cache is None else cache.bands(case_id, labels.numpy())

    def count(
        self,
        scores: Tensor,
        labels: Tensor,
        bands: LabelBands | None = None,
        reference: Any = None,
        predict: bool = False,
        spacing: tuple[float, ...] | None = None,
        normalised: bool = False,
    ) -> Counted:
        """Count one case; the arguments are those of :func:`segcal.statistics.count_logits`, and the voxel size."""
        surface = "surface" in self.tables
        class_bins = CLASS_BINS if "classwise" in self.tables else 0
        asked = predict or surface
        counted = count_logits(scores, labels, self.bins, class_bins, bands, reference, asked, normalised)
        if "sample" in self.tables:
            drawn = sample_voxels(scores, labels, reference)
            counted = counted._replace(tables=replace(counted.tables, sample=drawn))
        if not surface or counted.prediction is None:
            return counted
        distances = surface_distances(counted.prediction, labels.numpy(), counted.tables.num_classes, spacing)
        return counted._replace(tables=replace(counted.tables, surface=distances))
