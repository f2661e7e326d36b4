"""The result of :func:`segcal.trust`: one row per case and structure, in words that a person can act on."""

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from segcal.arguments import typed
from segcal.documents import write_csv, write_json
from segcal.names import clean

SCHEMA = 1
WIDTH = 140
# Rows that are printed; the files have all.
MOST_SHOWN = 60
MOST_NAMED = 10
# How a worklist begins: what begins otherwise was written by something else.
WORKLIST_SIGNATURE = re.compile(rb"case,image,score,review,")


class TrustRow(TypedDict):
    """One structure of one case; None is not defined.

    `expected_dice` is without the error that it usually has in the reference where it is `corrected`, else as it is
    computed, like `uncorrected_dice`. `reason` also has what should be known of a mask that passes.
    """

    case: str
    structure: str
    expected_dice: float
    dice_low: float | None
    dice_high: float | None
    dice_below_tau: float | None
    tau: float
    expected_iou: float
    expected_precision: float | None
    expected_recall: float | None
    volume: float
    volume_low: float | None
    volume_high: float | None
    mask_volume: float
    unit: str
    agreement: float | None
    atypical_p: float
    review: bool
    reason: str
    corrected: bool
    uncorrected_dice: float


class CaseVerdict(TypedDict):
    """One case: it is to be reviewed if any of its structures is, and its reasons are theirs.

    `dice_below_tau` is the largest of its structures, None where one is not defined; `expected_dice` is the lowest.
    With c the first, 1 where it is None, the `score` is (review + c) / 2. Cases to review have at least 0.5, the others
    at most that. Within both, the chance decides.
    """

    case: str
    score: float
    review: bool
    reason: str
    structures: int
    to_review: int
    dice_below_tau: float | None
    expected_dice: float


class BiomarkerRow(TypedDict):
    """One biomarker of one subject."""

    subject: str
    biomarker: str
    value: float | None
    low: float | None
    high: float | None
    mask_value: float | None
    reason: str


class BoundRow(TypedDict):
    """The thresholds of one structure: None where the labelled cases support none."""

    structure: str
    outer_threshold: float | None
    inner_threshold: float | None
    reviewed_at_most: float | None
    reference_draws: int


class Printed(ABC):
    """Rows with more about them: printed as tables and sentences, written as CSV and JSON."""

    command: ClassVar[str]
    row: ClassVar[type]
    rows: list[Any]

    @abstractmethod
    def parts(self) -> "list[Table | str]":
        """Return the tables that are printed, and what they promise."""

    @abstractmethod
    def to_plain(self) -> dict[str, object]:
        """Return everything as dicts, lists and numbers."""

    @classmethod
    def signatures(cls) -> dict[str, re.Pattern[bytes]]:
        """Return the names of its files, and how they begin: what begins otherwise was written by something else."""
        made_by = rf'\{{\n "schema": \d+,\n "made_by": "segcal {cls.command}"'
        columns = ",".join([*cls.row.__annotations__][:3]) + ","
        said = {f"{cls.command}.json": made_by, f"{cls.command}.csv": columns}
        return {name: re.compile(text.encode()) for name, text in said.items()}

    @typed
    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``COMMAND.json`` and ``COMMAND.csv`` into a folder."""
        self.to_json(Path(folder) / f"{self.command}.json")
        self.to_csv(Path(folder) / f"{self.command}.csv")

    @typed
    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows; what is not known is an empty cell, and several numbers have spaces between."""
        rows = (row if isinstance(row, dict) else row._asdict() for row in self.rows)
        write_csv(path, list(self.row.__annotations__), rows)

    @typed
    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything; what is not known is null."""
        write_json(path, self.to_plain())

    def __rich__(self) -> Group:
        """Return what is printed."""
        return Group(*(Text(each) if isinstance(each, str) else each for each in self.parts()))

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None).print(self.__rich__())
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


@dataclass(frozen=True)
class Trust(Printed):
    """The trust in each structure of each case.

    Attributes:
        rows: one per case and structure, in the order of the cases.
        biomarkers: one per subject and biomarker.
        bounds: one per structure.
        level: of all intervals and bounds.
        tau: the Dice below which a mask is bad; by structure, if they differ.
        source: how the reference cases stand to the fit: "held out", "validation" or "out of fold".
        draws: how many groups (or single cases) the reference has.
        promise: in words, what the intervals promise.
        alarms: in words, what has changed since the fit (:mod:`segcal.trust.alarms`); mostly nothing.
    """

    command, row = "trust", TrustRow
    rows: list[TrustRow]
    biomarkers: list[BiomarkerRow]
    bounds: list[BoundRow]
    level: float
    tau: float | dict[str, float]
    source: str
    draws: int
    promise: str
    alarms: list[str] = field(default_factory=list)

    def first(self) -> list[TrustRow]:
        """Return the rows, what to look at first."""
        return sorted(self.rows, key=_urgency)

    def cases(self) -> list[CaseVerdict]:
        """Return one verdict per case, what to look at first: review if any of its structures is to be reviewed."""
        return case_rows(self.rows)

    @typed
    def to_worklist(self, path: str | os.PathLike[str], images: Mapping[str, str] | None = None) -> None:
        """Write the verdicts per case, what to look at first; `images` are paths or URLs by case, if there are any."""
        known, (first, *others) = images or {}, CaseVerdict.__annotations__
        rows = ({"image": known.get(row["case"], "")} | row for row in self.cases())
        write_csv(path, [first, "image", *others], rows)

    def to_plain(self) -> dict[str, object]:
        """Return everything as dicts, lists and numbers."""
        facts = {name: getattr(self, name) for name in ("level", "tau", "source", "draws", "promise", "alarms")}
        tables = {name: getattr(self, name) for name in ("rows", "biomarkers", "bounds")}
        return {"schema": SCHEMA, "made_by": "segcal trust", **facts, "cases": self.cases(), **tables}

    def parts(self) -> "list[Table | str]":
        """Return the tables that are printed, and what they promise."""
        flagged, cases = sum(row["review"] for row in self.rows), self.cases()
        named = [clean(case["case"]) for case in cases if case["review"]]
        first = ": " + ", ".join([*named[:MOST_NAMED], *["..."] * (len(named) > MOST_NAMED)]) if named else ""
        found = f"{len(named)} of {len(cases)} cases to review{first}"
        shown: list[Table | str] = [self._structures()]
        if self.biomarkers:
            shown.append(self._biomarkers())
        more = [] if len(self.rows) <= MOST_SHOWN else [f"... and {len(self.rows) - MOST_SHOWN} more rows"]
        said = f"{flagged} of {len(self.rows)} structures to review. {self.promise}"
        return [*shown, *more, found, said, *self.alarms]

    def _structures(self) -> Table:
        percent = f"{100 * self.level:g} %"
        below = "Dice < tau" if isinstance(self.tau, dict) else f"Dice < {self.tau:g}"
        headings = ("case", "structure", "expected Dice", percent, below, "volume", percent, "review")
        rows = []
        for row in self.first()[:MOST_SHOWN]:
            volume = f"{number_cell(row['volume'], '.4g')} {row['unit']}"
            dice = f"{row['expected_dice']:.3f}" + ("" if row["corrected"] else " raw")
            cells = [row["case"], row["structure"], dice]
            own = f" (tau {row['tau']:g})" if isinstance(self.tau, dict) else ""
            chance = number_cell(row["dice_below_tau"], ".2f") + own
            cells += [span_cell(row["dice_low"], row["dice_high"], ".2f"), chance, volume]
            cells += [span_cell(row["volume_low"], row["volume_high"], ".4g"), _verdict(row)]
            rows.append(cells)
        return plain_table(headings, rows)

    def _biomarkers(self) -> Table:
        headings = ("subject", "biomarker", "value", f"{100 * self.level:g} %", "of the masks", "")
        rows = [
            [row["subject"], row["biomarker"], number_cell(row["value"], ".4g"),
             span_cell(row["low"], row["high"], ".4g"), number_cell(row["mask_value"], ".4g"), row["reason"]]
            for row in self.biomarkers
        ]  # fmt: skip
        return plain_table(headings, rows)


def case_rows(rows: Iterable[TrustRow]) -> list[CaseVerdict]:
    """Return one row per case, what to look at, or to annotate, first."""
    by_case: dict[str, list[TrustRow]] = {}
    for row in rows:
        by_case.setdefault(row["case"], []).append(row)
    found = [_case_row(case, own) for case, own in by_case.items()]
    return sorted(found, key=lambda one: (not one["review"], -one["score"], one["expected_dice"], one["case"]))


def _case_row(case: str, rows: list[TrustRow]) -> CaseVerdict:
    flagged, chances = [row for row in rows if row["review"]], [row["dice_below_tau"] for row in rows]
    known = [chance for chance in chances if chance is not None]
    most = max(known) if len(known) == len(chances) else None
    return {
        "case": case,
        "score": (bool(flagged) + (1.0 if most is None else most)) / 2,
        "review": bool(flagged),
        "reason": " | ".join(f"{row['structure']}: {row['reason']}" for row in flagged),
        "structures": len(rows),
        "to_review": len(flagged),
        "dice_below_tau": most,
        "expected_dice": min(row["expected_dice"] for row in rows),
    }


def _urgency(row: TrustRow) -> tuple[bool, float, float, str]:
    chance = row["dice_below_tau"]
    return not row["review"], -(1.0 if chance is None else chance), row["expected_dice"], row["case"]


def _verdict(row: TrustRow) -> str:
    return row["reason"] if row["review"] or not row["reason"] else f"no ({row['reason']})"


def number_cell(value: float | None, form: str) -> str:
    """Return a number as it is printed."""
    return "–" if value is None else _plain(value, form)


def span_cell(low: float | None, high: float | None, form: str) -> str:
    """Return an interval as it is printed."""
    return "–" if low is None or high is None else f"[{_plain(low, form)}, {_plain(high, form)}]"


def _plain(value: float, form: str) -> str:
    """Return a number, from 1,000 to 1e9 in whole units and without an exponent if its form is of digits."""
    return f"{value:,.0f}" if form == ".4g" and 1000 <= abs(value) < 1e9 else f"{value:{form}}"


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table in which an interval stands below its number, and the second name below the first."""
    below = {1} | {number for number, heading in enumerate(headings) if heading.endswith("%")}
    places = [[n, n + 1] if n + 1 in below else [n] for n in range(len(headings)) if n not in below]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place in places:
        text = place[0] == 0 or place[-1] == len(headings) - 1
        heading = "\n".join(headings[n] for n in place)
        table.add_column(heading, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows:
        table.add_row(*(Text("\n".join(clean(row[n]) for n in place)) for place in places))
    return table
