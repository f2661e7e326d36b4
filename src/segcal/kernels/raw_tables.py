"""The tables that one pass over the voxels fills (:mod:`segcal.kernels.reliability` says with what)."""

from dataclasses import dataclass, fields
from typing import Self, TypeAlias

import numpy as np

ZONES = 3
# Bins of doubt: eight to an octave (the exponent and three bits of a float32), from 2^-40 to 1.
DOUBT_OCTAVES = 40
DOUBT_BINS = 8 * DOUBT_OCTAVES
DOUBT_BASE = 8 * (127 - DOUBT_OCTAVES)
HARMFUL, BENEFICIAL, NEUTRAL = 0, 1, 2
# A number of every voxel, if there is one.
Map: TypeAlias = np.ndarray | None


@dataclass(frozen=True)
class Layout:
    """What is counted: the sizes of the tables.

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


@dataclass
class RawTables:
    """What one pass counted; tables of several passes add.

    Attributes:
        cells: ``(bands, zones, wrong/right, bins)`` int64, the binnings one after another on the last axis.
        confidence: the sum of confidence in the same cells, float64.
        class_count: ``(zones, classes, class_bins)`` int64.
        class_hits: how often the class was the true one.
        class_prob: the sum of the class's probability, float64.
        confusion: ``(truth, prediction)`` int64.
        flips: ``(reference, prediction, harmful/beneficial/neutral)`` int64.
        doubt: ``(doubt bins, wrong/right)`` int64, from the least doubt to the most.
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
    doubt: np.ndarray
    sums: np.ndarray
    energy: np.ndarray
    ignored: np.ndarray
    offset: np.ndarray

    @classmethod
    def zeros(cls, layout: Layout, lead: tuple[int, ...] = ()) -> Self:
        """Return empty tables, `lead` of them."""
        c, top = layout.num_classes, (layout.bands, ZONES, 2, sum(layout.bins))
        by_class = (ZONES, c, layout.class_bins)
        whole = {"cells": top, "class_count": by_class, "class_hits": by_class, "confusion": (c, c)}
        whole |= {"flips": (c, c, 3), "doubt": (DOUBT_BINS, 2), "ignored": (1,)}
        real: dict[str, tuple[int, ...]] = {"confidence": top, "class_prob": by_class}
        real |= {"sums": (3,), "energy": (2,), "offset": (1,)}
        arrays = {name: np.zeros(lead + shape, np.int64) for name, shape in whole.items()}
        return cls(**arrays, **{name: np.zeros(lead + shape) for name, shape in real.items()})

    def voxels(self) -> int:
        """Return how many voxels counted."""
        return int(self.confusion.sum())

    def __add__(self, other: Self) -> Self:
        """Return the tables of both; the moments of the free energy are merged, the offset is the larger one."""
        total = type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})
        total.offset = np.maximum(self.offset, other.offset)
        total.energy = _merge(self.voxels(), self.energy, other.voxels(), other.energy)
        return total


def merge_blocks(blocks: RawTables) -> RawTables:
    """Add tables that are stacked along a first axis, in their order."""
    parts = [
        RawTables(**{f.name: getattr(blocks, f.name)[i] for f in fields(blocks)}) for i in range(len(blocks.ignored))
    ]
    total = parts[0]
    for piece in parts[1:]:
        total = total + piece
    return total


def fill_first_class_bin(tables: RawTables) -> None:
    """Set count and hits of the first bin of every class from what the other bins left over."""
    confusion = tables.confusion
    size = np.array([confusion[0, 0], confusion[0, 1:].sum(), confusion[1:].sum()])
    truth = np.zeros((ZONES, len(confusion)), np.int64)
    truth[0, 0], truth[1, 0] = size[0], size[1]
    truth[2, 1:] = confusion[1:].sum(1)
    tables.class_count[:, :, 0] = size[:, None] - tables.class_count[:, :, 1:].sum(-1)
    tables.class_hits[:, :, 0] = truth - tables.class_hits[:, :, 1:].sum(-1)


def _merge(n: int, first: np.ndarray, m: int, second: np.ndarray) -> np.ndarray:
    if n == 0 or m == 0:
        return second if n == 0 else first
    gap = second[0] - first[0]
    return np.array([first[0] + gap * m / (n + m), first[1] + second[1] + gap * gap * n * m / (n + m)])
