"""How often each of n cases comes in n draws with replacement, many times over; of very many cases in bounded memory.

Numbers are made some rows at a time; beyond :data:`LARGE` / 64 they are kept as bytes and used so too: 2,000 draws of
126,000 cases take 252 MB instead of 2 GB. No case is drawn 256 times at once: the chance is below 1e-500. And the mean
of what is defined.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

LARGE = 1 << 25


def draw_counts(generator: np.random.Generator, times: int, size: int) -> np.ndarray:
    """Return ``(times, size)``: how often each case came; as float64, or as bytes beyond LARGE / 64."""
    step = max(1, LARGE // (128 * size))  # the same draws as all at once
    found = np.empty((times, size), np.dtype(np.uint8 if times * size > LARGE // 64 else float))
    for start in range(0, times, step):
        rows = min(step, times - start)
        drawn = generator.integers(size, size=(rows, size)) + np.arange(rows)[:, None] * size
        found[start : start + rows] = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)
    return found


def row_blocks(counts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows that can be worked on at a time: all of them, unless they are very many."""
    step = len(counts) if counts.dtype.kind == "f" else LARGE // (128 * counts.shape[1])
    for start in range(0, max(len(counts), 1), max(step, 1)):
        yield counts[start : start + max(step, 1)]


def defined_mean(values: np.ndarray, axis: int | None = None) -> Any:
    """Return the mean of what is defined, NaN of nothing, without numpy's warning."""
    defined = ~np.isnan(values)
    count = defined.sum(axis)
    total = np.where(defined, values, 0.0).sum(axis)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
