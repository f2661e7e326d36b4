"""Files of results: one JSONL file a unit, complete or absent.

The first line is the header: schema, digest, the unit, the promises and the certificate of its calibrator, and which
cases it was fitted, validated and tested on. One line a test case follows, with its numbers and the small tables that
pooled metrics read. The last line holds the tables of all its cases together, for figures. No time, no path and no
machine is in it, so that the same protocol writes the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from segcal.atomic import write_text
from segcal.benchmark.units import SCHEMA, Unit
from segcal.documents import parse_json
from segcal.errors import ArtifactError, InputError
from segcal.statistics import CaseTables

PROTOCOL = "protocol.json"


@dataclass(frozen=True)
class UnitResult:
    """The results of one unit.

    Attributes:
        unit: which one.
        header: the first line.
        rows: one dict a test case, in the order of their ids: case, group, voxels, ignored, metrics (None: undefined),
            parts (tables of pooled metrics), flip_bands.
        total: the tables of all test cases together, as plain data; see `tables`.
    """

    unit: Unit
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    total: dict[str, Any] = field(repr=False)

    @cached_property
    def tables(self) -> CaseTables:
        """Return the tables of all test cases together: reliability (by bins, region "all"), class-wise, bands, ..."""
        return CaseTables.from_plain(self.total["tables"])

    def numbers(self, metric: str) -> list[float | None]:
        """Return one number a test case."""
        return [row["metrics"].get(metric) for row in self.rows]


@dataclass(frozen=True)
class Results:
    """All results of a folder.

    Attributes:
        folder: the folder.
        protocol: the resolved protocol, as plain data, with its hash and notes.
        units: the results that belong to this protocol.
    """

    folder: Path
    protocol: dict[str, Any]
    units: tuple[UnitResult, ...]

    def repeats(self, task: str, pipeline: str, test_on: str = "") -> list[UnitResult]:
        """Return the results of a pipeline, by its title, in the order of the repeats."""
        wanted = (task, pipeline, test_on)
        found = [each for each in self.units if (each.unit.task, each.unit.pipeline.title, each.unit.test_on) == wanted]
        return sorted(found, key=lambda each: each.unit.repeat)


def write_unit(folder: Path, header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], total: Any) -> Path:
    """Write the file of a unit."""
    unit = Unit.from_plain(header["unit"])
    lines = [header, *rows, {"total": total}]
    text = "".join(
        json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n" for line in lines
    )
    return write_text(folder / unit.path, text)


def finished(folder: Path, unit: Unit, digest: str) -> bool:
    """Return whether the file of a unit is there, with this digest and its last line."""
    try:
        lines = _lines(folder / unit.path)
        header = parse_json(lines[0])
    except (OSError, ValueError, IndexError):
        return False
    return isinstance(header, dict) and header.get("digest") == digest and lines[-1].startswith('{"total":')


def read_unit(path: Path) -> UnitResult:
    """Read the file of a unit."""
    try:
        header, *lines = [parse_json(line) for line in _lines(path)]
        if header["schema"] != SCHEMA:
            raise ArtifactError(
                f"{path} has schema {header['schema']}, but this segcal reads {SCHEMA}. Run the benchmark again."
            )
        return UnitResult(Unit.from_plain(header["unit"]), header, lines[:-1], lines[-1]["total"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ArtifactError(
            f"{path} is not readable as results ({error}), but it must be as segcal wrote it. "
            "Delete it and run the benchmark again."
        ) from None


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are complete: a name may hold what other programs take for the end of a line."""
    return path.read_bytes().decode().split("\n")[:-1]


def read_results(folder: str | Path) -> Results:
    """Read a folder of results; units that its protocol does not list any more are left out."""
    place = Path(folder)
    protocol, units = read_protocol(place)
    return Results(place, protocol, tuple(_existing([place / unit.path for unit in units])))


def read_protocol(place: Path) -> tuple[dict[str, Any], list[Unit]]:
    """Read the protocol of a folder of results, with the units that it lists."""
    if not (place / PROTOCOL).is_file():
        raise InputError(
            f"{place} has no {PROTOCOL}, but a folder written by segcal benchmark is needed. Check the path."
        )
    try:
        protocol = parse_json((place / PROTOCOL).read_text("utf-8"))
        return protocol, [Unit.from_plain(plain) for plain in protocol["units"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{place / PROTOCOL} is not readable ({error}), but it must be as segcal wrote it. Run the benchmark again."
        ) from None


def _existing(paths: Sequence[Path]) -> Iterator[UnitResult]:
    for path in paths:
        if path.is_file():
            yield read_unit(path)
