"""A study: facts for its reader, how it runs, what it draws; and its outcome: typed data and tables.

``studies/NAME.json`` has the data after a header, ``tables/STEM.{md,csv,tex}`` the tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, convert, to_builtins

from segcal.documents import parse_json, write_json
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, line_style, shorten
from segcal.report.paper_tables import FOLDER as TABLES
from segcal.report.table import Cell, Group, Row, Table
from segcal.studies.setting import Setting
from segcal.summary import Interval

SCHEMA = 1
FOLDER = "studies"
# Of more pipelines than these the first ones are drawn.
MOST_LINES = 8

Data = TypeVar("Data", bound=Struct)
One = TypeVar("One")


class StudyHeader(Struct):
    """The head of a document, before the data of its study."""

    schema: int
    study: str
    digest: str
    tables: list[str]


@dataclass(frozen=True)
class Outcome(Generic[Data]):
    """Everything that the figures of a study need, and its tables by the stem of their files (none if read back)."""

    data: Data
    tables: Mapping[str, Table]

    def write(self, results: str | Path, name: str, digest: str = "") -> list[Path]:
        """Write the outcome of the study of this name into a folder of results; return the paths.

        `digest` is of what decides the numbers. The document comes last: once it is there, so are the tables.
        """
        written = [path for stem, table in self.tables.items() for path in table.write(Path(results) / TABLES, stem)]
        header = StudyHeader(SCHEMA, name, digest, [path.name for path in written])
        plain = to_builtins(header) | to_builtins(self.data)
        return [write_json(Path(results) / FOLDER / f"{name}.json", plain), *written]


class Study(NamedTuple):
    """A study.

    Attributes:
        shows: its subject; `needs`: of the benchmark, "" for nothing in particular; `costs`: its time.
        usual: whether it runs if the protocol names no studies.
        run: from a finished benchmark to the outcome; raises NothingToStudyError.
        data: the type of its data.
        figures: of one task, from its data.
    """

    shows: str
    needs: str
    costs: str
    usual: bool
    run: Callable[[Setting], Outcome[Any]]
    data: type[Struct]
    figures: Callable[[Any, TaskSection], Iterable[Drawn]] = lambda data, section: ()

    def read(self, results: str | Path, name: str, digest: str) -> Outcome[Any] | None:
        """Return the outcome that was written with this digest and is complete; None if it is to be done anew."""
        try:
            document = parse_json((Path(results) / FOLDER / f"{name}.json").read_text("utf-8"))
            header, data = convert(document, StudyHeader), convert(document, self.data)
        except (OSError, ValueError):
            return None
        same = (header.schema, header.study, header.digest) == (SCHEMA, name, digest)
        whole = all((Path(results) / TABLES / file).is_file() for file in header.tables)
        return Outcome(data, {}) if same and whole else None


def interval_cell(one: Interval | None) -> Cell:
    """Return a number as a cell; an interval of no width (one repeat, or nothing that changed) is not shown.

    >>> interval_cell(Interval(0.5, 0.5, 0.5))
    Cell(value=0.5, low=None, high=None, middle=None)
    """
    if one is None:
        return Cell(None)
    return Cell(one.value) if one.low == one.high else Cell(one.value, one.low, one.high)


def task_groups(tasks: Mapping[str, Mapping[str, One]], cells: Callable[[One], Iterable[Cell]]) -> tuple[Group, ...]:
    """Return one group per task, one row per entry of it."""
    return tuple(
        Group(task, tuple(Row(title, tuple(cells(one))) for title, one in rows.items())) for task, rows in tasks.items()
    )


def compared_first(section: TaskSection, titles: Iterable[str]) -> list[str]:
    """Return titles of pipelines, those first that the page compares."""
    return list(dict.fromkeys([title for title in (section.baseline, section.chosen) if title] + list(titles)))


def draw_band(axis: Any, places: Sequence[int], numbers: Sequence[Interval], line: int, title: str) -> None:
    """Draw numbers as a line, the `line`-th of a figure, with a band of their intervals."""
    value, low, high = (np.array([getattr(each, key) for each in numbers], float) for key in ("value", "low", "high"))
    axis.plot(places, value, label=shorten(title, 30), **line_style(line))
    axis.fill_between(places, low, high, color=line_style(line)["color"], alpha=0.12, linewidth=0)
