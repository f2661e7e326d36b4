"""The rows of the board: one CSV file per study in docs/board, and ``studies.json``, which says what each study is.

    python -m paper.board        # check every file against the schema and count its rows

Numbers are kept as they were printed, so that a row can be compared to the last digit. A study is written by one
command, which its entry in ``studies.json`` names; to add one, write both and run this check.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from segcal.atomic import write_text
from segcal.errors import InputError
from segcal.report.table import Cell, Column, Table
from segcal.summary import Interval

FOLDER = Path(__file__).parents[1] / "docs" / "board"
STUDIES = "studies.json"
Text = Annotated[str, Meta(min_length=1)]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a study.

    Attributes:
        task: the task or the ensemble, and where it is tested if that is elsewhere.
        method: the pipeline, the calibrator, the loss, or the pair that is compared.
        metric: of the number, with its unit.
        value, low, high: the number, and its interval if there is one.
        cases, repeats: how many the number is over, where the study has no one answer.
        note: what cannot be a number.
    """

    task: str
    method: Text
    metric: Text
    value: Decimal | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    cases: int | None = None
    repeats: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a row that says nothing, and an interval with one end or without a value."""
        if self.value is None and not self.note:
            raise ValueError("value is missing, but a row without a note needs one")
        if (self.low is None) != (self.high is None) or (self.value is None and self.low is not None):
            raise ValueError("an interval has a value and two ends")


class Study(Struct, frozen=True, forbid_unknown_fields=True):
    """What the rows of one file have in common.

    Attributes:
        name: of the file, without its end.
        title: a short noun phrase.
        about: what was run and how to read it.
        interval: what low and high are.
        code: version and source digest of the code that made the numbers.
        command: what makes them again.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
    title: Text
    about: Text
    interval: Text
    code: Text
    command: Text


def read_studies(folder: Path = FOLDER) -> list[Study]:
    """Return the studies of a folder, in the order of the board."""
    return msgspec.json.decode((folder / STUDIES).read_bytes(), type=list[Study])


def read_rows(name: str, folder: Path = FOLDER) -> list[Row]:
    """Return the rows of a study; a row that the schema does not know is refused with its line."""
    path = folder / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != Row.__struct_fields__:
            raise InputError(
                f"{path} has the columns {reader.fieldnames}, but {list(Row.__struct_fields__)} are needed. "
                "Write it with paper.board.write_rows."
            )
        return [_row(cells, f"{path}, line {reader.line_num},") for cells in reader]


def _row(cells: dict[str, str], where: str) -> Row:
    texts = {"task", "method", "metric", "note"}
    known = {name: cell for name, cell in cells.items() if cell != "" or name in texts}
    try:
        return msgspec.convert(known, Row, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{where} is no row ({error}), but the board needs one. Correct the cell.") from error


def write_rows(name: str, rows: Iterable[Row], folder: Path = FOLDER) -> Path:
    """Write the rows of a study."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    for row in rows:
        writer.writerow("" if cell is None else cell for cell in msgspec.structs.astuple(row))
    return write_text(folder / f"{name}.csv", text.getvalue())


def write_code(name: str, code: str, folder: Path = FOLDER) -> None:
    """Write which code made the rows of a study; what a folder does not know of it is taken from the board."""
    studies = read_studies(folder) if (folder / STUDIES).is_file() else []
    if name not in [study.name for study in studies]:
        studies += [study for study in read_studies() if study.name == name]
    if name not in [study.name for study in studies]:
        raise InputError(f"{name} is no study, but its rows were written to {folder}. Add it to {STUDIES} there.")
    studies = [msgspec.structs.replace(one, code=code) if one.name == name else one for one in studies]
    write_text(folder / STUDIES, msgspec.json.format(msgspec.json.encode(studies), indent=1).decode() + "\n")


def number(value: float | None, form: str = ".4f") -> Decimal | None:
    """Return a number as it is printed, without a minus before a zero.

    >>> number(-0.00001), number(0.25, "+.2f")
    (Decimal('0.0000'), Decimal('0.25'))
    """
    if value is None:
        return None
    found = Decimal(f"{value:{form}}")
    return abs(found) if found == 0 else found


def rows_of_table(table: Table, task: str = "", metric: str = "{}", named: bool = False) -> Iterator[Row]:
    """Yield the numbers of a table, one row per cell.

    Args:
        table: any.
        task: of all rows; without it, a column's span names the task, or the heading of a group.
        metric: what the title of a column stands in.
        named: the heading of a group is part of the method.
    """
    for group in table.groups:
        for row in group.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.value is not None:
                    title = f"{column.span} {column.title}".strip() if task else column.title
                    title = metric.format(title) + (", %" if column.scale == 100 else "")
                    method = f"{group.title}, {row.title}" if named else row.title
                    yield _of_cell(task or column.span or group.title, method, title, cell, column)


def _of_cell(task: str, method: str, metric: str, cell: Cell, column: Column) -> Row:
    if not isinstance(cell.value, int | float):
        return Row(task, method, metric, note=str(cell.value))
    value, low, high = (None if one is None else Decimal(column.text(one)) for one in (cell.value, cell.low, cell.high))
    middle = "" if cell.middle is None else f"median {column.text(cell.middle)}"
    return Row(task, method, metric, value, low, high, note=middle)


def measured(
    task: str, method: str, metric: str, one: Interval, form: str = ".4f", scale: float = 1.0, note: str = ""
) -> Iterator[Row]:
    """Yield the row of a mean or of a difference, times a scale; none where it is not defined."""
    if one.value is not None:
        ends = (one.value, one.low, one.high)
        value, low, high = (number(None if end is None else scale * end, form) for end in ends)
        yield Row(task, method, metric, value, low, high, note=note)


def counted(task: str, method: str, counts: Mapping[str, int]) -> Iterator[Row]:
    """Yield the rows of counts, by their metric."""
    for metric, count in counts.items():
        yield Row(task, method, metric, Decimal(count))


NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
CELL = re.compile(
    rf"^(?P<about>~)?(?P<value>{NUMBER})(?: ?(?P<unit>%|x)(?= |$))?"
    rf"(?: \[(?P<low>{NUMBER})(?:, (?P<middle>{NUMBER}))?, (?P<high>{NUMBER})\])? ?(?P<rest>.*)$"
)


def rows_of_markdown(text: str, task: str = "", leading: int = 1, heading: bool = False) -> Iterator[Row]:
    """Yield the numbers of the tables of a Markdown text, one row per cell.

    Args:
        text: any text; what is no table is passed over.
        task: of all rows; without it, the heading of a group of rows names the task, or the first of two columns.
        leading: how many columns are names; the last of them is the method.
        heading: the first word of the head of a table names the task.
    """
    head: list[str] = []
    group, names = "", [""] * leading
    for line in text.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [_plain(cell) for cell in line.strip().strip("|").split("|")]
        if not head:
            head = [re.sub(r" ?[↓↑]", "", cell) for cell in cells]
        elif not any(cells[1:]):
            group = cells[0].strip("*")
        elif not re.fullmatch(r"[\s|:-]+", line):
            names = [cell or before for cell, before in zip(cells, names, strict=False)]
            where = task or (" ".join(names[:-1]) if leading > 1 else head[0] if heading else group)
            for metric, cell in zip(head[leading:], cells[leading:], strict=True):
                if cell not in ("", "—", "–"):
                    yield _cell(cell, where, names[-1], metric)


def _plain(cell: str) -> str:
    return cell.strip().replace("**", "").replace("`", "")


def _cell(cell: str, task: str, method: str, metric: str) -> Row:
    found = CELL.match(cell)
    if found is None:
        return Row(task, method, metric, note=cell)
    value, low, high = (None if found[name] is None else _decimal(found[name]) for name in ("value", "low", "high"))
    if found["unit"]:
        metric = f"{metric}, {found['unit']}"
    notes = (found["about"] and "about", found["middle"] and f"median {found['middle']}", found["rest"])
    note = "; ".join(filter(None, notes))
    return Row(task, method, metric, value, low, high, note=note)


def _decimal(text: str) -> Decimal:
    found = Decimal(text.replace(",", ""))
    return abs(found) if found == 0 else found


def check(folder: Path = FOLDER) -> dict[str, int]:
    """Return how many rows each study has; refuse a file without an entry, and an entry without a file."""
    names = [study.name for study in read_studies(folder)]
    files = [path.stem for path in sorted(folder.glob("*.csv"))]
    if sorted(names) != files:
        odd: Sequence[str] = sorted(set(names) ^ set(files))
        raise InputError(f"{folder} has {odd} once, but a study is a file and an entry of {STUDIES}. Add the other.")
    return {name: len(read_rows(name, folder)) for name in names}


if __name__ == "__main__":
    counts = check()
    for one, count in counts.items():
        print(f"{one:24} {count:6,}")
    print(f"{'all':24} {sum(counts.values()):6,}")
