"""The tables that one pass over the voxels fills (:mod:`segcal.kernels.reliability` says with what)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Self, TypeAlias

import numpy as np

ZONES = 3
# Bins of uncertainty: eight to an octave (the exponent and three bits of a float32), from 2^-40 to 1.
UNCERTAINTY_OCTAVES = 40
UNCERTAINTY_BINS = 8 * UNCERTAINTY_OCTAVES
UNCERTAINTY_BASE = 8 * (127 - UNCERTAINTY_OCTAVES)
HARMFUL, BENEFICIAL, NEUTRAL = 0, 1, 2
# A number of every voxel, if there is one.
Map: TypeAlias = np.ndarray | None


@dataclass(frozen=True)
class Layout:
    """The sizes of the tables that are counted.

    Attributes:
        num_classes: C.
        bins: the numbers of bins of confidence.
        class_bins: the number of bins of each class's probability; 0 to leave these tables out.
        bands: how many band codes there are.
    """

    num_classes: int
    bins: tuple[int, ...]
    class_bins: int
    bands: int = 1


class RawTables(NamedTuple):
    """Tables that one pass counted; compiled loops take them as they are.

    Attributes:
        cells: ``(bands, zones, wrong/right, bins)`` int64, the binnings one after another on the last axis.
        confidence: the sum of confidence in the same cells, float64.
        class_count: ``(zones, classes, class_bins)`` int64.
        class_hits: how often the class was the true one.
        class_prob: the sum of the class's probability, float64.
        confusion: ``(truth, prediction)`` int64.
        flips: ``(reference, prediction, harmful/beneficial/neutral)`` int64.
        uncertainty: ``(uncertainty bins, wrong/right)`` int64, from the lowest uncertainty to the highest.
        sums: sums of NLL, Brier score and entropy, float64.
        energy: mean of the free energy and sum of squared deviations from it, float64.
        ignored: ``(1,)`` int64, the voxels that did not count.
        offset: ``(1,)``, the largest absolute free energy; zero for log-probabilities.
    """

    cells: np.ndarray
    confidence: np.ndarray
    class_count: np.ndarray
    class_hits: np.ndarray
    class_prob: np.ndarray
    confusion: np.ndarray
    flips: np.ndarray
    uncertainty: np.ndarray
    sums: np.ndarray
    energy: np.ndarray
    ignored: np.ndarray
    offset: np.ndarray

    @classmethod
    def zeros(cls, layout: Layout) -> Self:
        """Return empty tables."""
        c, top = layout.num_classes, (layout.bands, ZONES, 2, sum(layout.bins))
        by_class = (ZONES, c, layout.class_bins)
        whole = {"cells": top, "class_count": by_class, "class_hits": by_class, "confusion": (c, c)}
        whole |= {"flips": (c, c, 3), "uncertainty": (UNCERTAINTY_BINS, 2), "ignored": (1,)}
        real: dict[str, tuple[int, ...]] = {"confidence": top, "class_prob": by_class}
        real |= {"sums": (3,), "energy": (2,), "offset": (1,)}
        arrays = {name: np.zeros(shape, np.int64) for name, shape in whole.items()}
        return cls(**arrays, **{name: np.zeros(shape) for name, shape in real.items()})

    def voxels(self) -> int:
        """Return how many voxels counted."""
        return int(self.confusion.sum())

    def fill_first_class_bin(self) -> None:
        """Set count and hits of the first bin of every class from what the other bins left over."""
        confusion = self.confusion
        size = np.array([confusion[0, 0], confusion[0, 1:].sum(), confusion[1:].sum()])
        truth = np.zeros((ZONES, len(confusion)), np.int64)
        truth[0, 0], truth[1, 0] = size[0], size[1]
        truth[2, 1:] = confusion[1:].sum(1)
        self.class_count[:, :, 0] = size[:, None] - self.class_count[:, :, 1:].sum(-1)
        self.class_hits[:, :, 0] = truth - self.class_hits[:, :, 1:].sum(-1)


def add_tables(parts: Iterable[RawTables]) -> RawTables:
    """Return the tables of all; the moments of the free energy are merged, the offset is the largest one."""
    return reduce(_add, parts)


def add_votes(parts: Iterable[tuple[int, RawTables]], total: int) -> RawTables:
    """Return the tables of parts of which each voxel has so many of `total` votes, but not their free energy.

    Counts are of votes; sums are in units of `total` votes, so that a voxel with all votes adds what it adds alone.
    """
    times = ([each * (votes if each.dtype.kind == "i" else votes / total) for each in own] for votes, own in parts)
    return reduce(_add, (RawTables(*each) for each in times))


def _add(one: RawTables, other: RawTables) -> RawTables:
    total = RawTables(*(mine + its for mine, its in zip(one, other, strict=True)))
    energy = merge_energy(one.voxels(), one.energy, other.voxels(), other.energy)
    return total._replace(offset=np.maximum(one.offset, other.offset), energy=energy)


def merge_energy(n: int, first: np.ndarray, m: int, second: np.ndarray) -> np.ndarray:
    """Return the moments of the free energy of n and m voxels together."""
    if n == 0 or m == 0:
        return second if n == 0 else first
    gap = second[0] - first[0]
    return np.array([first[0] + gap * m / (n + m), first[1] + second[1] + gap * gap * n * m / (n + m)])
