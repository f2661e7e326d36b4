"""What all tables have in common: they add up, and they turn into plain data and back.

Counts are int64 and add exactly. Sums are float64; they add in the order in which they are given, and whoever adds
the tables of many cases does it in the order of their ids, so that the result is the same to the last bit wherever
the cases were counted.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
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
