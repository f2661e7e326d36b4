"""Which table a metric reads."""

from collections.abc import Callable

from segcal.errors import InputError
from segcal.statistics.boundary import Bands
from segcal.statistics.case import CaseTables
from segcal.statistics.confusion import Confusion
from segcal.statistics.flips import Flips
from segcal.statistics.free_energy import FreeEnergy
from segcal.statistics.likelihood import Likelihood
from segcal.statistics.ranking import Ranking
from segcal.statistics.reliability import Curve
from segcal.statistics.surface import Surface


def likelihood(tables: CaseTables) -> Likelihood:
    """Return the sums of NLL, Brier score and entropy."""
    return tables.likelihood


def confusion(tables: CaseTables) -> Confusion:
    """Return the confusion matrix."""
    return tables.confusion


def ranking(tables: CaseTables) -> Ranking:
    """Return errors by doubt."""
    return tables.ranking


def bands(tables: CaseTables) -> Bands | None:
    """Return what was counted by distance from the boundary."""
    return tables.bands


def flips(tables: CaseTables) -> Flips | None:
    """Return the flips."""
    return tables.flips


def free_energy(tables: CaseTables) -> FreeEnergy | None:
    """Return the moments of the free energy."""
    return tables.free_energy


def surface(tables: CaseTables) -> Surface | None:
    """Return the surface distances."""
    return tables.surface


def region_curve(region: str, bins: int) -> Callable[[CaseTables], Curve]:
    """Return a reader of the top-label reliability of a region."""

    def read(tables: CaseTables) -> Curve:
        return tables.reliability[_counted(bins, tables)][region]

    return read


def class_curves(region: str) -> Callable[[CaseTables], Curve | None]:
    """Return a reader of the class-wise reliability of a region."""

    def read(tables: CaseTables) -> Curve | None:
        return None if tables.classwise is None else tables.classwise[region]

    return read


def boundary_curve(bins: int) -> Callable[[CaseTables], Curve | None]:
    """Return a reader of the reliability of the first band."""

    def read(tables: CaseTables) -> Curve | None:
        return None if tables.bands is None else tables.bands.curves[_counted(bins, tables)][0]

    return read


def interior_curve(bins: int) -> Callable[[CaseTables], Curve | None]:
    """Return a reader of the reliability of all voxels beyond the first band, and of maps without a boundary."""

    def read(tables: CaseTables) -> Curve | None:
        return None if tables.bands is None else tables.bands.curves[_counted(bins, tables)][1:].summed(0)

    return read


def _counted(bins: int, tables: CaseTables) -> int:
    if bins not in tables.reliability:
        raise InputError(
            f"bins is {bins}, but the tables have {sorted(tables.reliability)} bins. "
            f"Count the cases with bins={bins} too."
        )
    return bins
