"""The table that a metric reads, None where a case has none, and what must be counted for it."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from segcal.errors import InputError
from segcal.statistics.case import CaseTables
from segcal.statistics.reliability import Curve

# Tables that are only made when asked for.
Need = Literal["bands", "classwise", "surface", "reference", "sample"]


@dataclass(frozen=True)
class Reader:
    """Reads a table of a case."""

    read: Callable[[CaseTables], Any]
    needs: tuple[Need, ...] = ()

    def __call__(self, tables: CaseTables) -> Any:
        """Return the table."""
        return self.read(tables)


likelihood = Reader(attrgetter("likelihood"))
confusion = Reader(attrgetter("confusion"))
ranking = Reader(attrgetter("ranking"))
free_energy = Reader(attrgetter("free_energy"))
bands = Reader(attrgetter("bands"), ("bands",))
flips = Reader(attrgetter("flips"), ("reference",))
surface = Reader(attrgetter("surface"), ("surface",))
sample = Reader(attrgetter("sample"), ("sample",))


def class_curves(region: str) -> Reader:
    """Return a reader of the class-wise reliability of a region: "all", "foreground" or "union"."""
    return Reader(lambda tables: None if tables.classwise is None else tables.classwise[region], ("classwise",))


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
        """What must be counted for it."""
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
