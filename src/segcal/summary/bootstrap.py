r"""From numbers of cases to means with intervals, and paired differences.

A pipeline's values are one array per repeat, one value per case, NaN where a value is not defined. The estimate is the mean
over repeats of the mean over cases. The interval comes from a two-level bootstrap: a replicate draws R repeats with
replacement and, for each of them anew, as many of its cases as it has, with replacement; its value is the mean over the
drawn repeats of the mean over the drawn cases. The interval is the percentile interval, linear between replicates.

All pipelines and metrics share the same draws (:class:`Draws`). So equal values have equal intervals, and an interval
of a difference is the interval of the paired difference.

Drawing with replacement is counting: how often each case was drawn is a row of weights, and all replicates of a
series are one product of weights and values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from segcal.errors import InputError
from segcal.summary.contents import LEVEL, REPLICATES, Difference, Estimate


class Draws:
    """The draws of a two-level bootstrap, made once and shared.

    Args:
        sizes: the number of cases of each repeat.
        replicates: how many times everything is drawn anew.
        seed: seed of the draws.

    Attributes:
        repeat: ``(replicates, R)``, the drawn repeats.
        weights: for each repeat, a row of weights for each time it was drawn, in the order of `repeat`.
    """

    def __init__(self, sizes: Sequence[int], replicates: int = REPLICATES, seed: int = 0) -> None:
        if not sizes or min(sizes) < 1 or replicates < 1:
            raise InputError(
                f"sizes is {list(sizes)} and replicates is {replicates}, but at least one repeat, one case in each and "
                "one replicate are needed. Leave out repeats without cases."
            )
        generator = np.random.default_rng(seed)
        self.sizes = tuple(int(size) for size in sizes)
        self.repeat = generator.integers(len(sizes), size=(replicates, len(sizes)))
        self.weights = []
        for r, size in enumerate(self.sizes):
            times = int((self.repeat == r).sum())
            drawn = generator.integers(size, size=(times, size)) + np.arange(times)[:, None] * size
            self.weights.append(np.bincount(drawn.ravel(), minlength=times * size).reshape(times, size).astype(float))

    def means(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the replicates of one series: one array of values per repeat, NaN where not defined."""
        drawn = np.full(self.repeat.shape, np.nan)
        for r, (weights, column) in enumerate(zip(self.weights, values, strict=True)):
            defined = ~np.isnan(column)
            total = weights @ np.where(defined, column, 0.0)
            count = weights @ defined.astype(float)
            drawn[self.repeat == r] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
        return _nanmean(drawn, axis=1)


def estimate(values: Sequence[np.ndarray], draws: Draws, level: float = LEVEL) -> Estimate:
    """Return mean and interval of one series.

    >>> estimate([np.array([1.0, 2.0, np.nan])], Draws([3])).value
    1.5
    """
    columns = _columns(values, draws)
    undefined = sum(int(np.isnan(column).sum()) for column in columns)
    total = sum(map(len, columns))
    value = _or_none(_nanmean(np.array([_nanmean(column) for column in columns])))
    low, high = percentile_interval(draws.means(columns), level)
    return Estimate(value, low, high, total - undefined, undefined)


def estimate_all(series: Mapping[Any, Sequence[np.ndarray]], draws: Draws, level: float = LEVEL) -> dict[Any, Estimate]:
    """Return mean and interval of many series that share draws; equal series are computed once."""
    known: dict[bytes, Estimate] = {}
    result = {}
    for key, values in series.items():
        digest = b"".join(np.asarray(column, float).tobytes() for column in values)
        if digest not in known:
            known[digest] = estimate(values, draws, level)
        result[key] = known[digest]
    return result


def difference(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    draws: Draws,
    better: Literal["lower", "higher"] | None = "lower",
    level: float = LEVEL,
) -> Difference:
    """Return the paired difference second - first over cases where both are defined.

    Args:
        first: one array per repeat.
        second: the same cases in the same order.
        draws: the shared draws.
        better: which direction is better; with None nothing counts as better or worse.
        level: of the interval.
    """
    gaps = [b - a for a, b in zip(_columns(first, draws), _columns(second, draws), strict=True)]
    found = estimate(gaps, draws, level)
    every = np.concatenate(gaps)
    down, up = int((every < 0).sum()), int((every > 0).sum())
    good, bad = {"lower": (down, up), "higher": (up, down), None: (0, 0)}[better]
    return Difference(
        found.value, found.low, found.high, found.cases, found.undefined, good, int((every == 0).sum()), bad
    )


def over_repeats(values: Sequence[float | None]) -> Estimate:
    """Return mean [min, max] of one value per repeat.

    >>> over_repeats([0.1, 0.3, None])
    Estimate(value=0.2, low=0.1, high=0.3, repeats=2)
    """
    found = [value for value in values if value is not None and not math.isnan(value)]
    if not found:
        return Estimate(None, None, None, repeats=0)
    return Estimate(float(np.mean(found)), min(found), max(found), repeats=len(found))


def pooled_replicates(parts: Sequence[Any], value: Callable[[Any], float | None], draws: Draws) -> np.ndarray:
    """Return the replicates of a number that is read from the sum of the tables of all cases of one repeat.

    Args:
        parts: one table per case (a dataclass of arrays).
        value: reads the number from a sum of tables.
        draws: draws of a single repeat.
    """
    weights = draws.weights[0].astype(np.int64)
    names = [f.name for f in fields(parts[0])]
    sums = {name: np.tensordot(weights, np.stack([np.asarray(getattr(p, name)) for p in parts]), 1) for name in names}
    kind = type(parts[0])
    found = [value(kind(**{name: column[i] for name, column in sums.items()})) for i in range(len(weights))]
    return np.array([math.nan if number is None else number for number in found])


def percentile_interval(replicates: np.ndarray, level: float = LEVEL) -> tuple[float | None, float | None]:
    """Return the percentile interval of the replicates that are defined."""
    defined = replicates[~np.isnan(replicates)]
    if defined.size == 0:
        return None, None
    low, high = np.percentile(defined, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def _columns(values: Sequence[np.ndarray], draws: Draws) -> list[np.ndarray]:
    columns = [np.asarray(column, float) for column in values]
    sizes = tuple(len(column) for column in columns)
    if sizes != draws.sizes:
        raise InputError(
            f"values has {sizes} cases in its repeats, but the draws were made for {draws.sizes}. "
            "Give one value per case, NaN where it is not defined."
        )
    return columns


def _nanmean(values: np.ndarray, axis: int | None = None) -> Any:
    """Return the mean of what is defined, NaN of nothing, without numpy's warning."""
    defined = ~np.isnan(values)
    count = defined.sum(axis)
    total = np.where(defined, values, 0.0).sum(axis)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _or_none(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
