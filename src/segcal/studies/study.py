"""A study: facts for its reader, and typed data, of which its tables and figures are made.

``studies/NAME.json`` has the data after a header, ``tables/STEM.{md,csv,tex}`` the tables.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, convert, to_builtins

from segcal.documents import parse_json, write_json
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, line_style, new_figure, shorten, styled
from segcal.report.paper_tables import FOLDER as TABLES
from segcal.report.table import Cell, Group, Row, Table
from segcal.studies.setting import Setting
from segcal.summary import Interval

SCHEMA = 1
FOLDER = "studies"
# Of more pipelines than these the first ones are drawn.
MOST_LINES = 8

One = TypeVar("One")


class StudyHeader(Struct):
    """The head of a document, before the data of its study."""

    schema: int
    study: str
    digest: str
    tables: list[str]


class Study(NamedTuple):
    """A study.

    Attributes:
        shows: its subject; `needs`: of the benchmark, "" for nothing in particular; `costs`: its time.
        usual: whether it runs if the protocol names no studies.
        run: from a finished benchmark to the data; raises NothingToStudyError.
        data: the type of its data.
        tables: of the data, by the stem of their files.
        figures: of one task, from the data.
    """

    shows: str
    needs: str
    costs: str
    usual: bool
    run: Callable[[Setting], Struct]
    data: type[Struct]
    tables: Callable[[Any], Mapping[str, Table]]
    figures: Callable[[Any, TaskSection], Iterable[Drawn]] = lambda data, section: ()

    def write(self, results: str | Path, name: str, data: Struct, digest: str = "") -> list[Path]:
        """Write the data of the study of this name and its tables into a folder of results; return the paths.

        `digest` is of what decides the numbers. The document comes last: once it is there, so are the tables.
        """
        place = Path(results)
        written = [path for stem, table in self.tables(data).items() for path in table.write(place / TABLES, stem)]
        header = StudyHeader(SCHEMA, name, digest, [path.name for path in written])
        return [write_json(place / FOLDER / f"{name}.json", to_builtins(header) | to_builtins(data)), *written]

    def read(self, results: str | Path, name: str, digest: str) -> Struct | None:
        """Return the data that was written with this digest and all its tables; None if it is to be done anew."""
        place = Path(results)
        try:
            document = parse_json((place / FOLDER / f"{name}.json").read_text("utf-8"))
            header, data = convert(document, StudyHeader), convert(document, self.data)
        except (OSError, ValueError):
            return None
        same = (header.schema, header.study, header.digest) == (SCHEMA, name, digest)
        return data if same and all((place / TABLES / file).is_file() for file in header.tables) else None


def interval_cell(one: Interval | None) -> Cell:
    """Return a number as a cell; an interval of no width (one repeat, or nothing that changed) is not shown.

    >>> interval_cell(Interval(0.5, 0.5, 0.5))
    Cell(value=0.5, low=None, high=None, middle=None, contends=True)
    """
    if one is None or one.low == one.high:
        return value_cell(one)
    return Cell(one.value, one.low, one.high)


def value_cell(one: Interval | None) -> Cell:
    """Return a number as a cell without its interval."""
    return Cell(None if one is None else one.value)


def task_groups(tasks: Mapping[str, Mapping[str, One]], cells: Callable[[One], Iterable[Cell]]) -> tuple[Group, ...]:
    """Return one group per task, one row per entry of it."""
    return tuple(
        Group(task, tuple(Row(title, tuple(cells(one))) for title, one in rows.items())) for task, rows in tasks.items()
    )


def drawn_of(
    section: TaskSection, stem: str, title: str, text: str, draw: Callable[..., Any], *data: Any, on_page: bool = True
) -> Drawn:
    """Return a figure of the task of a section; `draw` makes it of the data when it is needed."""
    return Drawn(f"{stem}_{section.task}", section.task, title, text, partial(draw, *data), on_page)


def compared_first(section: TaskSection, pipelines: Mapping[str, One]) -> dict[str, One]:
    """Return the pipelines that are drawn: those first that the page compares, and not too many."""
    titles = dict.fromkeys([*filter(None, (section.baseline, section.chosen)), *pipelines])
    return {title: pipelines[title] for title in [each for each in titles if each in pipelines][:MOST_LINES]}


@styled()
def band_figure(
    panels: Mapping[str, Mapping[str, Mapping[int, Interval]]],
    size: tuple[float, float],
    xlabel: str,
    ylabel: str = "",
    zero: bool = False,
    **limits: Any,
) -> Any:
    """Return axes side by side, on each a line per pipeline with a band of its intervals; `zero` draws a line there."""
    figure, axes = new_figure(1, len(panels), *size)
    for axis, (heading, lines) in zip(axes[0], panels.items(), strict=True):
        if zero:
            axis.axhline(0, color="#8a939c", linewidth=1)
        for number, (title, points) in enumerate(list(lines.items())[:MOST_LINES]):
            style, places = line_style(number), list(points)
            value, low, high = (
                np.array([getattr(each, end) for each in points.values()], float) for end in ("value", "low", "high")
            )
            axis.plot(places, value, label=shorten(title, 30), **style)
            axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set(title=heading, xlabel=xlabel, **limits)
    axes[0, 0].set_ylabel(ylabel)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
