"""A metric: a pure function of tables, with its facts as data. The table that it reads, and what is counted for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, Self

import numpy as np
from torch import Tensor

from segcal.arguments import typed
from segcal.errors import InputError
from segcal.raters import Votes
from segcal.statistics import BandCache, CaseTables, Counted, LabelBands, count_logits, find_bands, surface_distances
from segcal.statistics.case import CLASS_BINS, count_images
from segcal.statistics.reliability import Curve
from segcal.statistics.voxel_sample import sample_voxels

Need = Literal["bands", "classwise", "surface", "reference", "sample"]
# Tables that are only made when asked for, and what to ask for.
ASKED: dict[str, Need] = {
    "bands": "bands",
    "classwise": "classwise",
    "surface": "surface",
    "sample": "sample",
    "flips": "reference",
}


@dataclass(frozen=True)
class Reader:
    """Reads a table of a case, or that of one of its regions; None where a case has none."""

    table: str
    region: str | None = None

    @property
    def needs(self) -> tuple[Need, ...]:
        """The counts that it needs."""
        return (ASKED[self.table],) if self.table in ASKED else ()

    def __call__(self, tables: CaseTables) -> Any:
        """Return the table."""
        found = getattr(tables, self.table)
        return found if found is None or self.region is None else found[self.region]


@dataclass(frozen=True)
class CurveReader:
    """Reads a curve of the top label's reliability.

    Attributes:
        place: a region of :data:`segcal.statistics.reliability.REGIONS`; "boundary", the first band; "interior", all
            voxels beyond it, and maps without a boundary.
        bins: the number of bins.
    """

    place: str
    bins: int

    @property
    def needs(self) -> tuple[Need, ...]:
        """The counts that it needs."""
        return ("bands",) if self.place in ("boundary", "interior") else ()

    def __call__(self, tables: CaseTables) -> Curve | None:
        """Return the curve; None without bands where it is one of them."""
        if self.bins not in tables.reliability:
            raise InputError(
                f"bins is {self.bins}, but the tables have {sorted(tables.reliability)} bins. "
                f"Count the cases with bins={self.bins} too."
            )
        if not self.needs:
            return tables.reliability[self.bins][self.place]
        if tables.bands is None:
            return None
        curves = tables.bands.curves[self.bins]
        return curves[0] if self.place == "boundary" else curves[1:].summed(0)


@dataclass(frozen=True)
class Metric:
    """A number read from tables.

    Attributes:
        title: what it is, in a few words.
        part: which table it reads, by a :class:`Reader` or :class:`CurveReader`; None where a case has no such table.
        value: the number, from that table; NaN where it is not defined.
        unit: "nat", "fraction", "distance" (of the spacing, or voxels), or "" for a plain number.
        better: "lower", "higher", or None if neither is better as such.
        pooled: True to add the tables of all cases of a repeat and read one number; False to read one number per case
            and take the mean.
        bins: the number of bins it reads, if it reads some; its reader says it.
        needs: tables that are only made when asked for; its reader says it.
        plain: what a reader who knows no statistics sees as its title; "" for a metric that the report leaves out.
        sentence: what it says, for the same reader.
    """

    title: str
    part: Callable[[CaseTables], Any]
    value: Callable[..., float]
    unit: str = "fraction"
    better: Literal["lower", "higher"] | None = "lower"
    pooled: bool = False
    bins: int | None = None
    needs: tuple[Need, ...] = ()
    plain: str = ""
    sentence: str = ""

    def __post_init__(self) -> None:
        for name in ("bins", "needs"):
            object.__setattr__(self, name, getattr(self, name) or getattr(self.part, name, getattr(self, name)))

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that it can be."""
        return {"fraction": (0.0, 1.0), "nat": (0.0, inf), "distance": (0.0, inf)}.get(self.unit, (-inf, inf))

    @property
    def convention(self) -> str:
        """Its number of bins and the average over cases, without which that number says little; "" for none.

        >>> from segcal.metrics import METRICS
        >>> METRICS["ece"].convention, METRICS["ace"].convention, METRICS["nll"].convention
        ('50 bins, mean over cases', '15 bins, pooled over voxels', '')
        """
        return f"{self.bins} bins, {'pooled over voxels' if self.pooled else 'mean over cases'}" if self.bins else ""

    def __call__(self, tables: CaseTables) -> float | None:
        """Return the number of these tables, or None where it is not defined."""
        return self.of_part(self.part(tables))

    def of_part(self, part: Any) -> float | None:
        """Return the number of the table that `part` reads."""
        number = np.nan if part is None else float(self.value(part))
        return None if np.isnan(number) else number

    @typed
    def with_bins(self, bins: int) -> Self:
        """Return the metric with another number of bins."""
        if not isinstance(self.part, CurveReader):
            raise InputError(f"bins is {bins}, but the {self.title} is read without such bins. Leave it out.")
        return replace(self, part=replace(self.part, bins=bins), bins=bins)

    def in_words(self, plain: str, sentence: str) -> Self:
        """Return the metric with its title and sentence for readers who know no statistics."""
        return replace(self, plain=plain, sentence=sentence)

    def with_options(self, **options: Any) -> Self:
        """Return the metric with other conventions, as its function documents them."""
        return replace(self, value=partial(self.value, **options))


@dataclass(frozen=True)
class Needs:
    """The counts that some metrics of one case read, and no others."""

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

    @property
    def _class_bins(self) -> int:
        return CLASS_BINS if "classwise" in self.tables else 0

    def count_images(self, logits: Tensor, labels: Tensor) -> list[CaseTables]:
        """Count each image of a batch as one case, where nothing but the voxels' own scores and labels is needed."""
        return count_images(logits, labels, self.bins, self._class_bins)

    def count(
        self,
        scores: Tensor,
        labels: Tensor,
        bands: LabelBands | None = None,
        reference: Any = None,
        predict: bool = False,
        spacing: tuple[float, ...] | None = None,
        normalised: bool = False,
        votes: Votes | None = None,
    ) -> Counted:
        """Count one case; the arguments are those of :func:`segcal.statistics.count_logits`, and the voxel size."""
        surface = "surface" in self.tables
        asked = predict or surface
        counted = count_logits(scores, labels, self.bins, self._class_bins, bands, reference, asked, normalised, votes)
        if "sample" in self.tables:
            own = labels if votes is None else votes.one_each(np.random.default_rng(0))
            drawn = sample_voxels(scores, own, reference)
            counted = counted._replace(tables=replace(counted.tables, sample=drawn))
        if not surface or counted.prediction is None:
            return counted
        distances = surface_distances(counted.prediction, labels.numpy(), counted.tables.num_classes, spacing)
        return counted._replace(tables=replace(counted.tables, surface=distances))
