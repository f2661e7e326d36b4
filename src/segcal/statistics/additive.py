r"""What all tables have in common: they add up, and they turn into plain data and back. And the small tables of a case.

Counts are int64 and add exactly. Sums are float64; they add in the order in which they are given, and whoever adds
the tables of many cases does it in the order of their ids, so that the result is the same to the last bit wherever
the cases were counted.

Small are likelihood, confusion, flips, ranking and the free energy of the logits. Ranking: voxels are counted in bins
of doubt :math:`1 - \max_c q_c`, eight to an octave from :math:`2^{-40}` to 1. Most voxels of a segmentation are
nearly certain; bins that are even in the logarithm tell 1 - 1e-6 from 1 - 1e-9, where even bins of confidence would put
both in one.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

import numpy as np

from segcal.errors import InputError


class AdditiveTable:
    """A dataclass of arrays, numbers, dicts and other tables that adds field by field.

    A field with ``metadata={"fixed": True}`` says what is counted: it must be equal in both. A field with
    ``metadata={"per_case": True}`` belongs to one case alone and is None in a sum. None plus anything is None.
    """

    def __add__(self, other: Self) -> Self:
        """Return the table of both together."""
        if type(self) is not type(other):
            return NotImplemented
        total = {}
        for f in fields(self):  # type: ignore[arg-type]
            mine, its = getattr(self, f.name), getattr(other, f.name)
            if f.metadata.get("fixed"):
                if mine != its:
                    raise InputError(
                        f"tables with {f.name} = {mine} and {f.name} = {its} are added, but both must count the same. "
                        "Count all cases with the same options."
                    )
                total[f.name] = mine
            else:
                total[f.name] = None if f.metadata.get("per_case") else _add(mine, its)
        return type(self)(**total)

    def to_plain(self) -> dict[str, Any]:
        """Return the table as dicts, lists and numbers, fit for JSON."""
        return {f.name: _encode(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the table that :meth:`to_plain` wrote; what an older version did not count has its default."""
        known = [f for f in fields(cls) if f.name in plain or f.default is MISSING]  # type: ignore[arg-type]
        return cls(**{f.name: _decode(plain[f.name], f.metadata.get("table")) for f in known})


def total_of(tables: Mapping[str, Any]) -> Any:
    """Add tables by case id, in the order of the ids.

    >>> total_of({"b": 1, "a": 2})
    3
    """
    ids = sorted(tables)
    if not ids:
        raise InputError("tables is empty, but at least one case is needed. Count a case first.")
    total = tables[ids[0]]
    for case_id in ids[1:]:
        total = total + tables[case_id]
    return total


def _add(mine: Any, its: Any) -> Any:
    if mine is None or its is None:
        return None
    if isinstance(mine, dict):
        return {key: _add(value, its[key]) for key, value in mine.items()}
    return mine + its


def _encode(value: Any) -> Any:
    if isinstance(value, AdditiveTable):
        return value.to_plain()
    if isinstance(value, dict):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if not isinstance(value, np.ndarray):
        return list(value) if isinstance(value, tuple) else value
    # Most cells of most tables are empty: only the others are written.
    flat = value.reshape(-1)
    filled = np.flatnonzero(flat)
    return {
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "cells": filled.tolist(),
        "values": flat[filled].tolist(),
    }


def _decode(value: Any, table: type[AdditiveTable] | None) -> Any:
    if isinstance(value, dict) and "cells" in value:
        array = np.zeros(value["shape"], value["dtype"])
        array.reshape(-1)[value["cells"]] = value["values"]
        return array
    if isinstance(value, dict) and table is not None and set(value) == {f.name for f in fields(table)}:  # type: ignore[arg-type]
        return table.from_plain(value)
    if isinstance(value, dict):
        return {int(key) if key.isdigit() else key: _decode(entry, table) for key, entry in value.items()}
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Likelihood(AdditiveTable):
    """Sums over the voxels that count.

    Attributes:
        voxels: how many there are.
        nll: sum of minus the log-probability of the true class.
        brier: sum of squared distances between the probabilities and the one-hot truth.
        entropy: sum of the entropy of the probabilities, in nats.
    """

    voxels: int
    nll: float
    brier: float
    entropy: float


@dataclass(frozen=True)
class Confusion(AdditiveTable):
    """Voxels by true and predicted class: ``(truth, prediction)`` int64, and how many did not count."""

    count: np.ndarray
    ignored: int


@dataclass(frozen=True)
class Flips(AdditiveTable):
    """Voxels whose predicted class a calibrator changed: another class is *strictly* above the old winner.

    Attributes:
        count: ``(from, to, harmful/beneficial/neutral)`` int64. Harmful flips leave the true class, beneficial ones
            reach it, neutral ones go from one wrong class to another.
        voxels: how many voxels were compared.
    """

    count: np.ndarray
    voxels: int


@dataclass(frozen=True)
class Ranking(AdditiveTable):
    """Voxels in bins of doubt, from the least to the most, and those whose prediction is wrong; int64."""

    count: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class FreeEnergy(AdditiveTable):
    r"""Moments of :math:`F(z) = \log \sum_c e^{z_c}` over the voxels of a case (Table 3 of the paper).

    Count, mean and the sum of squared deviations from it, which merge without losing digits to a large offset.
    """

    voxels: int
    mean: float
    deviation: float

    def __add__(self, other: Self) -> Self:
        """Return the moments of both together."""
        n, m = self.voxels, other.voxels
        if n == 0 or m == 0:
            return other if n == 0 else self
        gap = other.mean - self.mean
        return type(self)(
            voxels=n + m,
            mean=self.mean + gap * m / (n + m),
            deviation=self.deviation + other.deviation + gap * gap * n * m / (n + m),
        )
