"""A table of numbers with intervals, row groups and the best of each column, for a terminal, Markdown, CSV or LaTeX.

The text formats show rounded numbers; CSV has all digits. The best value of a column is set in bold, with every other
that looks the same once rounded. A difference that is not shown is not claimed.
"""

import csv
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table as RichTable

from segcal.atomic import write_text
from segcal.names import csv_cell
from segcal.target import check_file, make_folder

DASH = "—"
ARROWS = {"lower": "↓", "higher": "↑", None: ""}
# Between two columns on a terminal.
GAP = 3
One = TypeVar("One")
LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$", "—": "---", "±": r"$\pm$", "<": r"$<$",
    ">": r"$>$", "✓": r"\checkmark{}", "↓": r"$\downarrow$", "↑": r"$\uparrow$",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of numbers or of text.

    Attributes:
        span: the heading above the title; neighbours with the same one share it.
        digits: decimals that are shown.
        scale: what numbers are multiplied with before they are shown: 100 for percent. CSV has the plain number.
        better: which direction is better; with None nothing is set in bold.
    """

    title: str
    span: str = ""
    digits: int = 3
    scale: float = 1.0
    better: Literal["lower", "higher"] | None = None

    @property
    def heading(self) -> str:
        """The title, and an arrow where a direction is better."""
        return f"{self.title} {ARROWS[self.better]}".strip()

    def text(self, number: float) -> str:
        """Return a number as it is shown."""
        text = f"{number * self.scale:.{self.digits}f}"
        return text.removeprefix("-") if float(text) == 0 else text  # no minus before a zero

    def best(self, cells: Iterable["Cell"]) -> str | None:
        """Return how the best number is shown; None where there is none."""
        values = [cell.value for cell in cells if isinstance(cell.value, int | float)]
        if self.better is None or not values:
            return None
        return self.text(min(values) if self.better == "lower" else max(values))


@dataclass(frozen=True)
class Cell:
    """A number with an optional interval, or a text; None is shown as a dash.

    Attributes:
        low, high: the ends of the interval, or the outer quartiles.
        middle: shown between the two, such as a median.
    """

    value: float | str | None
    low: float | None = None
    high: float | None = None
    middle: float | None = None

    def text(self, column: Column) -> str:
        """Return what is shown."""
        if self.value is None:
            return DASH
        if isinstance(self.value, str):
            return self.value
        inner = [column.text(number) for number in (self.low, self.middle, self.high) if number is not None]
        return column.text(self.value) + (f" [{', '.join(inner)}]" if inner else "")


@dataclass(frozen=True)
class Row:
    """One line: its title and one cell per column; `latex` replaces the title in LaTeX and is not escaped."""

    title: str
    cells: tuple[Cell, ...]
    latex: str | None = None


@dataclass(frozen=True)
class Group:
    """Rows that stand together under a heading; an empty title shows none."""

    title: str
    rows: tuple[Row, ...]


def quartiles(values: Sequence[float | None]) -> Cell:
    """Return mean [lower quartile, median, upper quartile], as offset variability is reported (Tables 3 and 5)."""
    found = sorted(value for value in values if value is not None and not math.isnan(value))
    if not found:
        return Cell(None)
    ends = []
    for share in (0.25, 0.75, 0.5):
        below, rest = divmod(share * (len(found) - 1), 1)
        first, second = found[int(below)], found[min(int(below) + 1, len(found) - 1)]
        ends.append(first + rest * (second - first))
    return Cell(math.fsum(found) / len(found), *ends)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows, one sentence.
        first: the heading of the column of row titles.
        notes: sentences below it.
        apart: groups are of different tasks, and each has its own best.

    >>> row = Row("ts", (Cell(0.25, 0.2, 0.3), Cell(None)))
    >>> columns = (Column("NLL", better="lower"), Column("Flip"))
    >>> print(Table("Results", "Pipeline", columns, (Group("", (row,)),)).to_markdown())
    **Results**
    <BLANKLINE>
    | Pipeline | NLL ↓ | Flip |
    |---|---:|---:|
    | ts | **0.250 [0.200, 0.300]** | — |
    <BLANKLINE>
    """

    title: str
    first: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()
    apart: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        columns: Iterable[Column],
        groups: Mapping[str, Mapping[str, One]],
        cells: Callable[[One], Iterable[Cell]],
        *notes: str,
        first: str = "Pipeline",
        apart: bool = False,
    ) -> "Table":
        """Return the table of what stands in groups, by their title and that of the row; `cells` makes its cells."""
        made = (
            Group(group, tuple(Row(name, tuple(cells(one))) for name, one in rows.items()))
            for group, rows in groups.items()
        )
        return cls(title, first, tuple(columns), tuple(made), notes, apart)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all groups."""
        return [row for group in self.groups for row in group.rows]

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        headings = [f"{column.span} {column.heading}".strip() for column in self.columns]
        lines = [f"**{self.title}**", "", f"| {' | '.join([self.first, *headings])} |"]
        lines.append("|---|" + "---:|" * len(self.columns))
        for group, rows in self._texts("**{}**".format):
            if group.title:
                lines.append(f"| *{group.title}* |" + " |" * len(self.columns))
            lines += [f"| {' | '.join([row.title, *texts])} |" for row, texts in rows]
        return "\n".join([*lines, *(line for note in self.notes for line in ("", note)), ""])

    def to_csv(self) -> str:
        """Return the table as CSV: all digits, an interval in columns of its own, an unknown value empty."""
        parts = [
            (number, part)
            for number in range(len(self.columns))
            for part in ("value", "low", "middle", "high")
            if part == "value" or any(getattr(row.cells[number], part) is not None for row in self.rows)
        ]
        names = [f"{column.span} {column.title}".strip() for column in self.columns]
        headings = [f"{names[number]} {part}".removesuffix(" value") for number, part in parts]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(csv_cell, ["group", self.first.lower(), *headings]))
        for group in self.groups:
            for row in group.rows:
                values = [getattr(row.cells[number], part) for number, part in parts]
                writer.writerow(map(csv_cell, [group.title, row.title, *values]))
        return text.getvalue()

    def to_latex(self) -> str:
        """Return a LaTeX table that needs the package booktabs."""
        width = len(self.columns) + 1
        headings = [_latex(f"{column.title}{ARROWS[column.better]}") for column in self.columns]
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
        if any(column.span for column in self.columns):
            spans = [(span, len(list(own))) for span, own in groupby(self.columns, lambda column: column.span)]
            cells = "".join(rf" & \multicolumn{{{count}}}{{c}}{{{_latex(span)}}}" for span, count in spans)
            lines.append(rf"{cells} \\")
        lines.append(rf"{_latex(self.first)} & {' & '.join(headings)} \\")
        for group, rows in self._texts(r"\textbf{{{}}}".format, _latex):
            lines.append(r"\midrule")
            if group.title:
                lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_latex(group.title)}}}}} \\")
            for row, texts in rows:
                lines.append(rf"{' & '.join([_latex(row.title) if row.latex is None else row.latex, *texts])} \\")
        caption = _latex(" ".join([f"{self.title}.".replace("..", "."), *self.notes]))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}", ""])

    def write(self, folder: str | os.PathLike[str], stem: str, overwrite: bool = False) -> list[Path]:
        """Write STEM.md, STEM.csv and STEM.tex and return their paths; a file that begins otherwise is not replaced."""
        contents = {".md": self.to_markdown(), ".csv": self.to_csv(), ".tex": self.to_latex()}
        targets = {Path(folder) / f"{stem}{suffix}": content for suffix, content in contents.items()}
        make_folder(Path(folder))
        for path, content in targets.items():
            begins = re.match(r"\*\*|[^,}]*", content)
            check_file(path, re.compile(re.escape(begins[0] if begins else "").encode()), (), overwrite)
        return [write_text(path, content) for path, content in targets.items()]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        """Yield what a terminal shows: as many columns as are room for beside the titles, the others below them."""
        widths = [len(self.first), *(len(row.title) for row in self.rows)]
        room = options.max_width - max(widths) - GAP
        parts: list[list[int]] = [[]]
        used = 0
        for number, column in enumerate(self.columns):
            cells = [len(row.cells[number].text(column)) for row in self.rows]
            wide = max([len(column.span), len(column.heading), *cells]) + GAP
            if parts[-1] and used + wide > room:
                parts.append([])
                used = 0
            parts[-1].append(number)
            used += wide
        for part in parts:
            yield self._shown(part, first=part is parts[0], last=part is parts[-1])

    def _shown(self, part: Sequence[int], first: bool, last: bool) -> RichTable:
        made = RichTable(box=box.SIMPLE_HEAD, title_justify="left", title_style="", pad_edge=False)
        made.title = _plain(self.title) if first else None
        if last:
            made.caption, made.caption_justify, made.caption_style = _plain("\n".join(self.notes)), "left", ""
        # A long heading of a group is cut short rather than widening the column of the titles.
        widest = max([len(self.first), *(len(row.title) for row in self.rows)])
        made.add_column(self.first, overflow="fold", max_width=max(widest, 32))
        for column in (self.columns[number] for number in part):
            made.add_column(_plain(f"{column.span}\n{column.heading}".strip()), justify="right", no_wrap=True)
        for group, rows in self._texts("[bold]{}[/bold]".format, _plain):
            if group.title:
                made.add_row(f"[italic]{_plain(group.title.partition(':')[0])}[/italic]")
            for row, texts in rows:
                made.add_row(_plain(row.title), *(texts[number] for number in part))
        return made

    def _texts(
        self, bold: Callable[[str], str], escape: Callable[[str], str] = str
    ) -> Iterator[tuple[Group, list[tuple[Row, list[str]]]]]:
        """Yield every group with its rows and the texts of their cells, the best of each column in bold."""
        for group in self.groups:
            compared = group.rows if self.apart else self.rows
            best = [column.best(row.cells[n] for row in compared) for n, column in enumerate(self.columns)]
            rows = []
            for row in group.rows:
                texts = []
                for cell, column, top in zip(row.cells, self.columns, best, strict=True):
                    wins = isinstance(cell.value, int | float) and column.text(cell.value) == top
                    texts.append(bold(escape(cell.text(column))) if wins else escape(cell.text(column)))
                rows.append((row, texts))
            yield group, rows


def _latex(text: str) -> str:
    return "".join(LATEX_CHARACTERS.get(letter, letter) for letter in text)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
