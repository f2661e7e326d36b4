"""Cases: what a case is, and where cases come from."""

from segcal.cases.arrays import ArrayCases
from segcal.cases.base import Case, Cases, Split

__all__ = ["ArrayCases", "Case", "Cases", "Split"]
