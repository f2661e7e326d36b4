"""What a study returns: plain data for figures and tables for readers, and where both are written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.atomic import write_text
from segcal.documents import parse_json
from segcal.report.paper_tables import FOLDER as TABLES
from segcal.report.table import Cell, Table

SCHEMA = 1
FOLDER = "studies"
# What a document has beside the data of its study.
HEADER = ("schema", "study", "digest", "tables")


@dataclass(frozen=True)
class Study:
    """The outcome of a study.

    Attributes:
        name: its name in :data:`segcal.benchmark.studies.STUDIES`.
        data: dicts, lists, numbers and texts: everything that a figure of it needs.
        tables: its tables, by the stem of their files; empty if it was read back from a folder of results.
    """

    name: str
    data: dict[str, Any]
    tables: Mapping[str, Table]

    def write(self, results: str | Path, digest: str = "") -> list[Path]:
        """Write ``studies/NAME.json`` and ``tables/STEM.{md,csv,tex}`` into a folder of results; return the paths.

        Args:
            results: the folder.
            digest: of what decides the numbers.
        """
        # The document comes last: once it is there, so are the tables.
        written = [path for stem, table in self.tables.items() for path in table.write(Path(results) / TABLES, stem)]
        header = {"schema": SCHEMA, "study": self.name, "digest": digest, "tables": [path.name for path in written]}
        text = json.dumps(header | self.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        return [write_text(Path(results) / FOLDER / f"{self.name}.json", text), *written]


def read_study(results: str | Path, name: str, digest: str) -> Study | None:
    """Return a study that was written with this digest and is complete; None if it is to be done anew."""
    try:
        document = parse_json((Path(results) / FOLDER / f"{name}.json").read_text("utf-8"))
        header = {key: document.pop(key) for key in HEADER}
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    same = (header["schema"], header["study"], header["digest"]) == (SCHEMA, name, digest)
    if not same or not all((Path(results) / TABLES / file).is_file() for file in header["tables"]):
        return None
    return Study(name, document, {})


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
