"""Files of results: one JSONL file per unit, complete or absent.

A unit is one pipeline, fitted on one task in one repeat, and tested there or on another task.

The first line is the header: schema, digest, the unit, and the promises and the certificate of its calibrator. It also
has the cases of the fit, of validation and of the test. One line per test case follows, with its numbers and the small
tables that pooled metrics read. The last line holds the tables of all its cases together, for figures. No time, no path
and no machine is in it, so that the same protocol writes the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from msgspec import Struct, convert, to_builtins

from segcal.atomic import write_text
from segcal.benchmark.protocol import Pipeline, digest
from segcal.documents import check_plain_file, json_text, parse_json, read_struct
from segcal.errors import ArtifactError, InputError
from segcal.kernels.raw_tables import BENEFICIAL, HARMFUL, NEUTRAL
from segcal.metrics.raters import in_votes
from segcal.raters import Raters
from segcal.statistics import CaseTables
from segcal.statistics.additive import AdditiveTable, total_of
from segcal.statistics.reliability import CurveSpread
from segcal.summary import Bootstrap
from segcal.types import Preserves

SCHEMA = 1
PROTOCOL = "protocol.json"
# Plain data of a table, as `AdditiveTable.to_plain` writes it.
PlainTable: TypeAlias = dict[str, object]


class Unit(Struct, frozen=True, kw_only=True):
    """One file of results: a pipeline fitted on a task in a repeat, and tested there or on the task `test_on`."""

    task: str
    repeat: int
    test_on: str = ""
    pipeline: Pipeline

    @property
    def path(self) -> Path:
        """Return its file, relative to the folder of results."""
        target = f"@{self.test_on}" if self.test_on else ""
        return Path("units", self.task, f"repeat_{self.repeat}", f"{self._stem}{target}.jsonl")

    @property
    def calibrator_path(self) -> Path:
        """Return the folder of its fitted calibrator, relative to the folder of results."""
        return Path("calibrators", self.task, f"repeat_{self.repeat}", self._stem)

    @property
    def _stem(self) -> str:
        options = f"-{digest(self.pipeline.options)[:8]}" if self.pipeline.options else ""
        return f"{self.pipeline.calibrator}-{self.pipeline.pooling}{options}"


@dataclass(frozen=True)
class FlipBands(AdditiveTable):
    """Flips by distance from the boundary; the last band holds voxels of maps without a boundary.

    Attributes:
        voxels: ``(bands + 1,)`` int64, the voxels that count.
        flips: ``(bands + 1, 3)`` int64: harmful, beneficial, neutral.
    """

    voxels: np.ndarray
    flips: np.ndarray

    @classmethod
    def of(cls, band: np.ndarray, count: int, labels: np.ndarray, before: np.ndarray, after: np.ndarray) -> Self:
        """Count voxels, whose `band` is one of `count`, with their labels and predictions; all of one shape."""
        counts = labels >= 0
        flips = np.zeros((count, 3), np.int64)
        where = np.nonzero(counts & (before != after))
        kind = np.full(len(where[0]), NEUTRAL)
        kind[before[where] == labels[where]] = HARMFUL
        kind[after[where] == labels[where]] = BENEFICIAL
        np.add.at(flips, (band[where], kind), 1)
        return cls(np.bincount(band[counts], minlength=count).astype(np.int64), flips)


class UnitHeader(Struct, frozen=True, omit_defaults=True):
    """The first line: what was fitted, the cases that had part in it, and the raters of the test, if several."""

    schema: int
    digest: str
    segcal: str
    unit: Unit
    title: str
    translation_invariant: bool
    preserves: Preserves
    parameters: int
    identifiable: int
    num_classes: int
    class_names: tuple[str, ...] | None
    background: bool
    certificate: dict[str, Any]
    cal: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    raters: Raters | None = None


class CaseResult(Struct, frozen=True):
    """The line of a test case: its numbers (None: not defined), and the tables of pooled metrics and of flips."""

    case: str
    group: str | None
    voxels: int
    ignored: int
    metrics: dict[str, float | None]
    parts: dict[str, PlainTable]
    flip_bands: PlainTable


@dataclass(frozen=True)
class Totals(AdditiveTable):
    """The last line: tables of all test cases together.

    Attributes:
        tables: reliability (by bins, region "all"), class-wise, bands, ...
        flip_bands: where flips lie.
        spread: how much the curves of reliability diagrams vary between cases; results of old versions have none.
    """

    tables: CaseTables
    flip_bands: FlipBands
    spread: dict[str, CurveSpread]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the tables that :meth:`to_plain` wrote."""
        spread = {name: CurveSpread.from_plain(one) for name, one in plain.get("spread", {}).items()}
        return cls(CaseTables.from_plain(plain["tables"]), FlipBands.from_plain(plain["flip_bands"]), spread)

    @property
    def shown(self) -> CaseTables:
        """The tables for figures: of several raters sums are in votes, as counts are."""
        return in_votes(self.tables, self.tables.votes)


class UnitResult(Struct, frozen=True):
    """The results of one unit: `rows` in the order of the cases' ids, and the tables of all of them together."""

    header: UnitHeader
    rows: tuple[CaseResult, ...]
    total: Totals

    @property
    def unit(self) -> Unit:
        """The unit."""
        return self.header.unit

    @property
    def groups(self) -> list[str]:
        """The group of each test case, or a name of its own where it belongs to none."""
        return [row.group or f"\0{row.case}" for row in self.rows]

    def numbers(self, metric: str) -> list[float | None]:
        """Return one number per test case, None where it is not defined."""
        return [row.metrics.get(metric) for row in self.rows]

    def column(self, metric: str) -> np.ndarray:
        """Return the same numbers for the bootstrap: NaN where they are not defined."""
        return np.array([np.nan if number is None else number for number in self.numbers(metric)], float)


class TaskRecord(Struct, frozen=True):
    """A task in ``protocol.json``: its name, and its members or how many they are."""

    name: str
    members: int | tuple[str, ...]


class ProtocolRecord(Struct, frozen=True, kw_only=True):
    """``protocol.json``: what decided the numbers, and which cases and units that came to."""

    tasks: tuple[TaskRecord, ...] = ()
    repeats: int = 0
    seed: int = 0
    fit: dict[str, int | float | str | bool | None] = {}
    metrics: tuple[str, ...] = ()
    bootstrap: Bootstrap = Bootstrap()
    hash: str = ""
    notes: tuple[str, ...] = ()
    studies: tuple[str, ...] = ()
    compare: tuple[tuple[str, str], ...] = ()
    cases: dict[str, int] = {}
    fingerprints: dict[str, str] = {}
    units: tuple[Unit, ...]


class Results(Struct, frozen=True):
    """All results of a folder that belong to its protocol."""

    folder: Path
    protocol: ProtocolRecord
    units: tuple[UnitResult, ...]

    def repeats(self, task: str, pipeline: str, test_on: str = "") -> list[UnitResult]:
        """Return the results of a pipeline, by its title, in the order of the repeats."""
        wanted = (task, pipeline, test_on)
        found = [each for each in self.units if (each.unit.task, each.header.title, each.unit.test_on) == wanted]
        return sorted(found, key=lambda each: each.unit.repeat)


def total_tables(units: Sequence[UnitResult]) -> CaseTables:
    """Return the tables of the test cases of all repeats together."""
    return total_of({str(unit.unit.repeat): unit.total.shown for unit in units})


def total_flips(units: Sequence[UnitResult]) -> FlipBands:
    """Return where the flips of the test cases of all repeats lie."""
    return total_of({str(unit.unit.repeat): unit.total.flip_bands for unit in units})


def write_unit(folder: Path, header: UnitHeader, rows: Sequence[CaseResult], total: Totals) -> Path:
    """Write the file of a unit."""
    lines = to_builtins([header, *rows, {"total": total.to_plain()}])
    return write_text(folder / header.unit.path, "".join(json_text(line) + "\n" for line in lines))


# How the file of a unit begins.
OURS = b'{"schema":'


def finished(folder: Path, unit: Unit, expected: str, overwrite: bool = False) -> bool:
    """Return whether the file of a unit is there, with this digest and its last line; refuse one that is not ours."""
    path = folder / unit.path
    check_plain_file(path)
    try:
        content = path.read_bytes()
    except OSError:
        return False
    if not OURS.startswith(content[: len(OURS)]) and not overwrite:
        raise InputError(
            f"{path} exists and was not written by a benchmark, but it would be lost. Move it away, or pass "
            "overwrite=True."
        )
    try:
        lines = _lines(content)
        header = parse_json(lines[0])
    except (ValueError, IndexError):
        return False
    return isinstance(header, dict) and header.get("digest") == expected and lines[-1].startswith('{"total":')


def read_unit(path: Path) -> UnitResult:
    """Read the file of a unit."""
    try:
        header, *lines = map(parse_json, _lines(path.read_bytes()))
        if header["schema"] != SCHEMA:
            raise ArtifactError(
                f"{path} has schema {header['schema']}, but this segcal reads {SCHEMA}. Run the benchmark again."
            )
        rows = convert(lines[:-1], tuple[CaseResult, ...])
        return UnitResult(convert(header, UnitHeader), rows, Totals.from_plain(lines[-1]["total"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ArtifactError(
            f"{path} is not readable as results ({error}), but it must be as segcal wrote it. "
            "Delete it and run the benchmark again."
        ) from None


def _lines(content: bytes) -> list[str]:
    """Return the lines that are complete: a name may hold what other programs take for the end of a line."""
    return content.decode().split("\n")[:-1]


def read_results(folder: str | Path) -> Results:
    """Read a folder of results; units that its protocol does not list any more are left out."""
    place = Path(folder)
    protocol = read_protocol(place)
    paths = [place / unit.path for unit in protocol.units]
    return Results(place, protocol, tuple(read_unit(path) for path in paths if path.is_file()))


def read_protocol(place: Path) -> ProtocolRecord:
    """Read the protocol of a folder of results."""
    if not (place / PROTOCOL).is_file():
        raise InputError(
            f"{place} has no {PROTOCOL}, but a folder written by segcal benchmark is needed. Check the path."
        )
    return read_struct(place / PROTOCOL, ProtocolRecord, "Run the benchmark again.")
