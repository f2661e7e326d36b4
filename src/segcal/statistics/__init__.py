"""One pass over a case gives tables that add up: over chunks, cases, processes and machines."""

from segcal.statistics.additive import total_of
from segcal.statistics.boundary import BandCache, LabelBands, find_bands
from segcal.statistics.case import CaseTables, Counted, count_logits
from segcal.statistics.surface import surface_distances

__all__ = [
    "BandCache",
    "CaseTables",
    "Counted",
    "LabelBands",
    "count_logits",
    "find_bands",
    "surface_distances",
    "total_of",
]
