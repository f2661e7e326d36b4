"""What a study returns: plain data for figures and tables for readers, and where both are written."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.report.table import Cell, Table

SCHEMA = 1


@dataclass(frozen=True)
class Study:
    """The outcome of a study.

    Attributes:
        name: its name in :data:`segcal.benchmark.studies.STUDIES`.
        data: dicts, lists, numbers and texts: everything that a figure of it needs.
        tables: its tables, by the stem of their files.
    """

    name: str
    data: dict[str, Any]
    tables: Mapping[str, Table]

    def write(self, results: str | os.PathLike[str]) -> list[Path]:
        """Write ``studies/NAME.json`` and ``tables/STEM.{md,csv,tex}`` into a folder of results; return the paths."""
        target = Path(results) / "studies" / f"{self.name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        document = {"schema": SCHEMA, "study": self.name, **self.data}
        beside.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        beside.replace(target)
        written = [path for stem, table in self.tables.items() for path in table.write(Path(results) / "tables", stem)]
        return [target, *written]


def estimate_cell(one: Mapping[str, Any] | None) -> Cell:
    """Return an estimate as a cell; an interval of no width (one repeat, or nothing that changed) is not shown.

    >>> estimate_cell({"value": 0.5, "low": 0.5, "high": 0.5})
    Cell(value=0.5, low=None, high=None, middle=None, contends=True)
    """
    if one is None:
        return Cell(None)
    if one["low"] == one["high"]:
        return Cell(one["value"])
    return Cell(one["value"], one["low"], one["high"])
