"""The result of :func:`segcal.objects`: one row per object, one per case and structure, one per structure."""

import csv
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from segcal.arguments import typed
from segcal.atomic import write_text
from segcal.documents import write_json
from segcal.names import csv_cell
from segcal.trust.result import MOST_SHOWN, WIDTH, number_cell, plain_table, span_cell

# How the files begin: what begins otherwise was written by something else.
CSV_SIGNATURE = re.compile(rb"case,structure,object,p_real,")
JSON_SIGNATURE = re.compile(rb'\{\n "schema": \d+,\n "made_by": "segcal objects"')


class ObjectRow(NamedTuple):
    """One object, its number from 1 among those of its structure in the case; None is not known.

    Indices follow the axes of the array as it is read; `box` has the first voxel and the one behind the last. World
    coordinates are millimetres to the right, to the front and upwards (RAS), of centres of voxels; `world_box` has the
    smallest and the largest. `real` and `dice` are what labels say.
    """

    case: str
    structure: str
    object: int
    p_real: float | None
    listed: bool | None
    expected_dice: float | None
    size: float
    size_low: float | None
    size_high: float | None
    unit: str
    voxels: int
    mean_prob: float
    peak_prob: float
    disagreement: float | None
    centroid: list[float]
    box: list[int]
    world: list[float] | None
    world_box: list[float] | None
    real: bool | None
    dice: float | None


class ObjectCaseRow(NamedTuple):
    """One structure of one case; `truths` and `missed` are what labels say."""

    case: str
    structure: str
    objects: int
    expected_real: float | None
    listed: int | None
    expected_missed: float
    missed_at_most: float | None
    truths: int | None
    missed: int | None


class StructureRow(NamedTuple):
    """What one structure was judged by; `listed_from` is None where nothing is listed."""

    structure: str
    model: str
    reference_objects: int
    reference_real: int
    reference_draws: int
    listed_from: float | None


@dataclass(frozen=True)
class Objects:
    """The objects of some cases.

    Attributes:
        rows: one per object, in the order of the cases.
        cases: one per case and structure.
        structures: one per structure.
        level: of the intervals.
        fdr: the bound of the false share of a case's list.
        measure: by which an object is real, "iou" or "overlap".
        at: the least measure of a real object.
        source: how the labelled cases stand to the fit.
        promise: in words, what is promised.
    """

    rows: list[ObjectRow]
    cases: list[ObjectCaseRow]
    structures: list[StructureRow]
    level: float
    fdr: float
    measure: str
    at: float
    source: str
    promise: str

    def first(self) -> list[ObjectRow]:
        """Return the rows, what to look at first: where it is least sure whether the object is real, large ones."""
        return sorted(self.rows, key=lambda row: (abs((0.5 if row.p_real is None else row.p_real) - 0.5), -row.voxels))

    @typed
    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows; several numbers stand in one cell with spaces between, what is not known is empty."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [ObjectRow._fields, *(list(map(_cell, row)) for row in self.rows)]
        )
        write_text(path, text.getvalue())

    @typed
    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything; what is not known is null."""
        write_json(path, self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """Return everything as dicts, lists and numbers."""
        tables = {name: [row._asdict() for row in getattr(self, name)] for name in ("rows", "cases", "structures")}
        return {"schema": 1, "made_by": "segcal objects", **vars(self), **tables}

    def __str__(self) -> str:
        text = io.StringIO()
        parts = (Text(each) if isinstance(each, str) else each for each in self.parts())
        Console(file=text, width=WIDTH, color_system=None).print(Group(*parts))
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def parts(self) -> "list[Table | str]":
        """Return the table that is printed, and what it promises."""
        headings = ("case", "structure", "object", "real", "listed", "size", f"{100 * self.level:g} %", "Dice", "at")
        rows = []
        for row in self.first()[:MOST_SHOWN]:
            cells = [row.case, row.structure, str(row.object), number_cell(row.p_real, ".2f"), yes_no(row.listed)]
            cells += [f"{row.size:.4g} {row.unit}", span_cell(row.size_low, row.size_high, ".4g")]
            rows.append([*cells, number_cell(row.expected_dice, ".2f"), " ".join(f"{x:.0f}" for x in row.centroid)])
        more = [f"... and {len(self.rows) - MOST_SHOWN} more objects"] if len(self.rows) > MOST_SHOWN else []
        return [plain_table(headings, rows), *more, self.summary(), self.promise]

    def summary(self) -> str:
        """Return the counts in one sentence."""
        real, missed = (sum(x or 0 for x in each) for each in zip(*((r[3], r[5]) for r in self.cases), strict=True))
        return (
            f"{len(self.rows)} objects, {sum(bool(row.listed) for row in self.rows)} listed; about {real:.1f} are real "
            f"and {missed / len({row.case for row in self.cases}):.2f} are missed in a case."
        )


def write_objects(result: Objects, folder: str | os.PathLike[str]) -> None:
    """Write ``objects.json`` and ``objects.csv`` into a folder."""
    result.to_json(Path(folder) / "objects.json")
    result.to_csv(Path(folder) / "objects.csv")


def yes_no(value: bool | None) -> str:
    """Return what is printed of an answer."""
    return "–" if value is None else "yes" if value else "no"


def _cell(value: object) -> object:
    return " ".join(f"{each:.6g}" for each in value) if isinstance(value, list) else csv_cell(value)
