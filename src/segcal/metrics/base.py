"""What a metric is: a pure function of tables, with its facts as data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, Self

import numpy as np

from segcal.arguments import typed
from segcal.errors import InputError
from segcal.metrics.readers import CurveReader
from segcal.statistics.case import CaseTables

Need = Literal["bands", "classwise", "surface", "reference", "sample"]


@dataclass(frozen=True)
class Metric:
    """A number read from tables.

    Attributes:
        title: what it is, in a few words.
        part: which table it reads; None where a case has no such table.
        value: the number, from that table; NaN where it is not defined.
        unit: "nat", "fraction", "distance" (of the spacing, or voxels), or "" for a plain number.
        better: "lower", "higher", or None if neither is better as such.
        pooled: True to add the tables of all cases of a repeat and read one number; False to read one number per case
            and take the mean.
        bins: the number of bins it reads, if it reads some.
        needs: tables that are only made when asked for.
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

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that it can be."""
        return {"fraction": (0.0, 1.0), "nat": (0.0, inf), "distance": (0.0, inf)}.get(self.unit, (-inf, inf))

    @property
    def convention(self) -> str:
        """How many bins it has and how cases are averaged, without which the number of bins says little; "" for none.

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

    def with_options(self, **options: Any) -> Self:
        """Return the metric with other conventions, as its function documents them."""
        return replace(self, value=partial(self.value, **options))
