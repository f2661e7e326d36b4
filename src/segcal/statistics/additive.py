"""The base of all tables, which add up and turn into plain data or two vectors and back; and small tables.

A table is a declaration: a frozen dataclass whose fields are arrays, numbers, dicts of tables and other tables. Counts
are int64 and add exactly. Sums are float64 and add in the order in which they are given. Tables of many cases are added
in the order of their ids. So the result is the same to the last bit wherever the cases were counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import msgspec
import numpy as np

from segcal.errors import InputError

# Marks of fields, for Annotated. What is counted: it must be equal in both. What belongs to one case: None in a sum.
FIXED, PER_CASE = "fixed", "per case"


class AdditiveTable:
    """A dataclass that adds field by field; None plus anything is None."""

    def __add__(self, other: Self) -> Self:
        """Return the table of both together."""
        if type(self) is not type(other):
            return NotImplemented
        total = {}
        for f in fields(self):  # type: ignore[arg-type]
            mine, its, marks = getattr(self, f.name), getattr(other, f.name), getattr(f.type, "__metadata__", ())
            if FIXED in marks and mine != its:
                raise InputError(
                    f"tables with {f.name} = {mine} and {f.name} = {its} are added, but both must count the same. "
                    "Count all cases with the same options."
                )
            total[f.name] = mine if FIXED in marks else None if PER_CASE in marks else _add(mine, its)
        return type(self)(**total)

    def to_plain(self) -> dict[str, object]:
        """Return the table as dicts, lists and numbers, fit for JSON."""
        plain: dict[str, object] = msgspec.to_builtins(self, str_keys=True, enc_hook=_encode)
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, object]) -> Self:
        """Return the table that :meth:`to_plain` wrote; what an older version did not count has its default."""
        return msgspec.convert(plain, cls, str_keys=True, dec_hook=_decode)

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts and the sums of a table of arrays and numbers as two vectors, one field after the other."""
        values = [np.asarray(getattr(self, f.name)).reshape(-1) for f in fields(self)]  # type: ignore[arg-type]
        counts, sums = ([v for v in values if v.dtype.kind == kind] for kind in "if")
        return np.concatenate([np.empty(0, np.int64), *counts]), np.concatenate([np.empty(0), *sums])

    def unpacked(self, counts: np.ndarray, sums: np.ndarray) -> Self:
        """Return the table of this shape whose fields stand in two vectors."""
        made, rest = {}, {"i": counts, "f": sums}
        for f in fields(self):  # type: ignore[arg-type]
            like = np.asarray(getattr(self, f.name))
            values, rest[like.dtype.kind] = np.split(rest[like.dtype.kind], [like.size])
            made[f.name] = values.reshape(like.shape) if like.ndim else values.item()
        return type(self)(**made)


def unsummed(table: Any) -> dict[str, object]:
    """Return the fields of a table that do not add up: what is fixed, and None for what belongs to a case."""
    marks = {f.name: getattr(f.type, "__metadata__", ()) for f in fields(table)}
    return {name: getattr(table, name) if FIXED in own else None for name, own in marks.items() if own}


def total_of(tables: Mapping[str, object]) -> Any:
    """Add tables by case id, in the order of the ids.

    >>> total_of({"b": 1, "a": 2})
    3
    """
    ids = sorted(tables)
    if not ids:
        raise InputError("tables is empty, but at least one case is needed. Count a case first.")
    total: Any = tables[ids[0]]
    for case_id in ids[1:]:
        total = total + tables[case_id]
    return total


def _add(mine: Any, its: Any) -> Any:
    if mine is None or its is None:
        return None
    if isinstance(mine, dict):
        return {key: _add(value, its[key]) for key, value in mine.items()}
    return mine + its


def _encode(array: np.ndarray) -> dict[str, object]:
    """Return an array as plain data. Most cells of most tables are empty: only the others are written."""
    flat = array.reshape(-1)
    filled = np.flatnonzero(flat)
    shape, values = list(array.shape), flat[filled].tolist()
    return {"dtype": array.dtype.name, "shape": shape, "cells": filled.tolist(), "values": values}


def _decode(kind: type, plain: Any) -> np.ndarray:
    array = np.zeros(plain["shape"], plain["dtype"])
    array.reshape(-1)[plain["cells"]] = plain["values"]
    return array


@dataclass(frozen=True)
class Likelihood(AdditiveTable):
    """The number of voxels that count, and sums over them."""

    voxels: int
    nll: float  # minus the log-probability of the true class
    brier: float  # squared distances between the probabilities and the one-hot truth
    entropy: float  # of the probabilities, in nats


@dataclass(frozen=True)
class Confusion(AdditiveTable):
    """Voxels by true and predicted class."""

    count: np.ndarray  # (truth, prediction) int64
    ignored: int  # how many did not count


@dataclass(frozen=True)
class Flips(AdditiveTable):
    """Voxels whose predicted class a calibrator changed: another class is *strictly* above the old winner.

    Harmful flips leave the true class, beneficial ones reach it, neutral ones go from one wrong class to another.
    """

    count: np.ndarray  # (from, to, harmful/beneficial/neutral) int64
    voxels: int  # how many were compared


@dataclass(frozen=True)
class Ranking(AdditiveTable):
    r"""Voxels in bins of uncertainty :math:`1 - \max_c q_c`, from low to high, and those that are wrong; int64.

    The bins are eight to an octave from :math:`2^{-40}` to 1. Most voxels of a segmentation are nearly certain. Bins
    that are even in the logarithm tell 1 - 1e-6 from 1 - 1e-9, where even bins of confidence would put both in one.
    """

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
        mean = self.mean + gap * m / (n + m)
        return type(self)(n + m, mean, self.deviation + other.deviation + gap * gap * n * m / (n + m))
