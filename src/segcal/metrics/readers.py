"""The table that a metric reads; None where a case has none."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from segcal.errors import InputError
from segcal.statistics.case import CaseTables
from segcal.statistics.reliability import Curve

likelihood = attrgetter("likelihood")
confusion = attrgetter("confusion")
ranking = attrgetter("ranking")
bands = attrgetter("bands")
flips = attrgetter("flips")
free_energy = attrgetter("free_energy")
surface = attrgetter("surface")
sample = attrgetter("sample")


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

    def __call__(self, tables: CaseTables) -> Curve | None:
        """Return the curve; None without bands where it is one of them."""
        if self.bins not in tables.reliability:
            raise InputError(
                f"bins is {self.bins}, but the tables have {sorted(tables.reliability)} bins. "
                f"Count the cases with bins={self.bins} too."
            )
        if self.place not in ("boundary", "interior"):
            return tables.reliability[self.bins][self.place]
        if tables.bands is None:
            return None
        curves = tables.bands.curves[self.bins]
        return curves[0] if self.place == "boundary" else curves[1:].summed(0)


def class_curves(region: str) -> Callable[[CaseTables], Curve | None]:
    """Return a reader of the class-wise reliability of a region: "all", "foreground" or "union"."""
    return lambda tables: None if tables.classwise is None else tables.classwise[region]
