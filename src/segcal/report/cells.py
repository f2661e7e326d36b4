"""What a table is made of: columns, cells, rows and groups of rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

DASH = "—"


@dataclass(frozen=True)
class Column:
    """One column of numbers or of text.

    Attributes:
        title: the heading.
        span: the heading above it; neighbours with the same one share it.
        digits: decimals that are shown.
        scale: what numbers are multiplied with before they are shown: 100 for percent. CSV has the plain number.
        better: which direction is better; with None nothing is set in bold.
    """

    title: str
    span: str = ""
    digits: int = 3
    scale: float = 1.0
    better: Literal["lower", "higher"] | None = None


@dataclass(frozen=True)
class Cell:
    """A number with an optional interval, or a text.

    Attributes:
        value: the number or the text; None is shown as a dash.
        low: lower end of the interval, or lower quartile.
        high: upper end of the interval, or upper quartile.
        middle: shown between the two, such as a median.
        contends: False for a number that is shown but cannot be the best of its column.
    """

    value: float | str | None
    low: float | None = None
    high: float | None = None
    middle: float | None = None
    contends: bool = True

    def text(self, column: Column) -> str:
        """Return what is shown."""
        if self.value is None:
            return DASH
        if isinstance(self.value, str):
            return self.value
        inner = [number for number in (self.low, self.middle, self.high) if number is not None]
        interval = f" [{', '.join(shown(number, column) for number in inner)}]" if inner else ""
        return shown(self.value, column) + interval


@dataclass(frozen=True)
class Row:
    """One line: its title and one cell a column; `latex` replaces the title in LaTeX and is not escaped."""

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
    low, middle, high = (_quantile(found, share) for share in (0.25, 0.5, 0.75))
    return Cell(math.fsum(found) / len(found), low, high, middle)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def shown(number: float, column: Column) -> str:
    """Return a number as its column shows it."""
    text = f"{number * column.scale:.{column.digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text  # no minus before a zero
