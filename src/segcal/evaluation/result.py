"""The result of :func:`segcal.evaluate`: rows, estimates, and a table to print."""

import io
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from segcal.arguments import typed
from segcal.atomic import write_text
from segcal.documents import write_csv
from segcal.metrics import Metric
from segcal.metrics.raters import in_votes
from segcal.resample import FEWEST_GROUPS
from segcal.statistics.additive import AdditiveTable, total_of
from segcal.statistics.reliability import Curve
from segcal.summary import TOO_FEW, Difference, Estimate, Interval

SCHEMA = 1
# How the files begin: what begins otherwise was written by something else.
CSV_SIGNATURE = re.compile(rb"case,(part,)?stage,group,voxels,ignored\b")
SUMMARY_SIGNATURE = re.compile(rb'\{\n "stage": "')
WIDTH = 140
# A case at a stage: case, stage, group, voxels, ignored, and each metric by its name (None: undefined).
Row: TypeAlias = dict[str, Any]
# On fewer columns only the difference keeps its interval.
WIDE = 125
# Less than this between confidence and accuracy is not worth a word: 0.1 points.
NEGLIGIBLE = 0.001
# The measures that are compared before and after calibration, as a sentence names them.
COMPARED = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "dice": "Dice"}
ARROWS = {"lower": "↓", "higher": "↑", None: ""}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of each case, and their means with intervals.

    Attributes:
        rows: one per case and stage.
        before: the estimate of each metric before calibration.
        after: the same after calibration; None without a calibrator.
        change: the paired difference after - before of each metric; None without a calibrator.
        metrics: the metrics.
        level: the level of the intervals.
        parts: by stage, metric and case, the tables of metrics that pool voxels over cases.
        calibrator: 16 digits of the digest of the calibrator; None without one, and for a function.
        fitted_on: how many of the cases have names of cases that the calibrator was fitted or chosen on.
        raters: in words, the several raters of the cases and of the fit; "" of one.
    """

    rows: list[Row]
    before: dict[str, Estimate]
    after: dict[str, Estimate] | None
    change: dict[str, Difference] | None
    metrics: Mapping[str, Metric] = field(repr=False)
    level: float
    parts: Mapping[str, Mapping[str, Mapping[str, AdditiveTable]]] = field(default_factory=dict, repr=False)
    calibrator: str | None = None
    fitted_on: int = 0
    raters: str = ""

    @typed
    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows, and the digest of the calibrator in each after it; an undefined value is an empty cell."""
        made_by = {} if self.calibrator is None else {"calibrator": self.calibrator}
        rows = ({**row, **(made_by if row["stage"] == "after" else {})} for row in self.rows)
        write_csv(path, [*self.rows[0], *made_by], rows)

    @typed
    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything; an undefined value is null."""
        write_text(path, json.dumps(self.to_plain(), indent=1))

    @typed
    def to_summary(self, path: str | os.PathLike[str]) -> None:
        """Write JSON shaped like nnU-Net's ``summary.json``: a mean, and the metrics of each case.

        The numbers are those after calibration, or before it where there is no calibrator.
        """
        last, stage = (self.before, "before") if self.after is None else (self.after, "after")
        cases = [
            {"case": row["case"], "metrics": {name: row[name] for name in self.metrics}}
            for row in self.rows
            if row["stage"] == stage
        ]
        document = {
            "stage": stage,
            "mean": {name: one.value for name, one in last.items()},
            "metric_per_case": cases,
        }
        write_text(path, json.dumps(document, indent=1))

    def to_plain(self) -> dict[str, object]:
        """Return everything as dicts, lists and numbers."""

        def plain(part: Mapping[str, Interval] | None) -> dict[str, object] | None:
            return None if part is None else {name: msgspec.to_builtins(one) for name, one in part.items()}

        facts = {
            name: {"title": m.title, "unit": m.unit, "better": m.better, "pooled": m.pooled, "bins": m.bins}
            for name, m in self.metrics.items()
        }
        return {
            "schema": SCHEMA,
            "level": self.level,
            "metrics": facts,
            "before": plain(self.before),
            "after": plain(self.after),
            "change": plain(self.change),
            "calibrator": self.calibrator,
            "raters": self.raters,
            "rows": self.rows,
        }

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None).print(self.__rich__())
        shown = "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
        return f"{shown}\n\n{self.verdict}" if self.verdict else shown

    def __rich__(self) -> Table:
        """Return the table that is printed."""
        return self.table()

    @typed
    def table(self, width: int = WIDTH) -> Table:
        """Return the table that is printed on so many columns."""
        groups = {row["case"]: row["group"] or (row["case"],) for row in self.rows}
        table = Table(
            box=box.SIMPLE_HEAD,
            title=_heading(len(groups), len({*groups.values()}), self.level),
            title_justify="left",
            title_style="",
            caption="\n".join(_notes(self, width)),
            caption_justify="left",
            caption_style="",
            pad_edge=False,
        )
        compared = self.after is not None
        columns = 4 if width >= WIDE else 3
        headings = ["before", "after", "after - before", "better/equal/worse"] if compared else ["before"]
        table.add_column("", no_wrap=True)
        for heading in headings[:columns]:
            table.add_column(heading, justify="right", no_wrap=True)
        if not compared:
            table.add_column("what it is")
        for name, metric in self.metrics.items():
            if self._defined(name):
                cells = self._cells(name, columns) if compared else [*self._cells(name, columns), _title(metric)]
                table.add_row(f"{name} {ARROWS[metric.better]}", *cells)
        return table

    @property
    def verdict(self) -> str:
        """Effect of calibration on the measures of :data:`COMPARED`, labels and mean confidence, in a sentence.

        Dice is named only where its interval excludes zero. Empty without a calibrator, or without such a measure.
        """
        sizes: dict[tuple[str, bool], list[str]] = {}
        rest: dict[str, list[str]] = {"no difference": [], "not defined": []}
        for name, title in COMPARED.items():
            gap, better = (self.change or {}).get(name), self.metrics[name].better if name in self.metrics else None
            if gap is None or gap.value is None or better is None:
                continue
            found, digits = gap.verdict(better), _digits(self.before[name].value or 0.0)
            if found in ("better", "worse"):
                ends = sorted(abs(end or 0.0) for end in (gap.low, gap.high))
                size = f"{title} by {abs(gap.value):.{digits}f} [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"
                sizes.setdefault((found, gap.value > 0), []).append(size)
            elif better == "lower":
                rest[found].append(title if gap.low is not None else f"{title} by {_text(gap, digits, sign='+')}")
        told = [
            f"{'raised' if raised else 'lowered'} {', '.join(some)}{' (worse)' if found == 'worse' else ''}"
            for (found, raised), some in sorted(sizes.items())
        ]
        same = ", ".join(rest["no difference"])
        told += [f"{same}: no measurable difference" if told else f"changed {same} by no measurable amount"] * bool(
            same
        )
        told += [f"changed {', '.join(rest['not defined'])} ({TOO_FEW})"] if rest["not defined"] else []
        last = total_of(curves) if (curves := self.curves("after")) else None
        left = "" if last is None else gap_in_words(float((last.confidence - last.right).sum() / last.count.sum()))
        facts = [*told, *self._flips(), left and f"now {left} on average"]
        return f"Calibration {'; '.join(filter(None, facts))}." if told else ""

    def _flips(self) -> list[str]:
        rows = [row for row in self.rows if row["stage"] == "after" and row.get("flip_rate") is not None]
        flips, voxels = sum(row["voxels"] * row["flip_rate"] for row in rows), sum(row["voxels"] for row in rows)
        changed = f"labels changed in {100 * flips / voxels:.2g} % of voxels" if flips else "no label changed"
        return [changed] if rows else []

    def curves(self, stage: str) -> dict[str, Curve]:
        """Return the reliability of all voxels at a stage, by case; empty without ACE among the metrics."""
        found = self.parts.get(stage, {}).get("ace", {})
        votes = getattr(self.metrics["ace"].value, "total", 1) if found else 1  # counts are of votes, sums of voxels
        return {case_id: in_votes(part, votes) for case_id, part in found.items() if isinstance(part, Curve)}

    def _defined(self, name: str) -> bool:
        stages = [self.before] if self.after is None else [self.before, self.after]
        return any(stage[name].value is not None for stage in stages)

    def _cells(self, name: str, columns: int) -> list[str]:
        digits = _digits((self.after or self.before)[name].value or self.before[name].value or 0.0)
        if self.after is None or self.change is None:
            return [_text(self.before[name], digits)]
        change = self.change[name]
        if columns < 4:
            plain = [_text(stage[name], digits).split(" ")[0] for stage in (self.before, self.after)]
            return [*plain, _text(change, digits, sign="+")]
        counts = f"{change.better} / {change.equal} / {change.worse}"
        return [
            _text(self.before[name], digits),
            _text(self.after[name], digits),
            _text(change, digits, sign="+"),
            counts if change.cases and self.metrics[name].better else "",
        ]


def gap_in_words(gap: float) -> str:
    """Return mean confidence minus accuracy as a person reads it; "" if they agree.

    >>> gap_in_words(-0.03)
    'underconfident by 3.0 points'
    """
    return f"{'over' if gap > 0 else 'under'}confident by {100 * abs(gap):.1f} points" if abs(gap) >= NEGLIGIBLE else ""


def _heading(cases: int, groups: int, level: float) -> str:
    own, of = ("cases", "") if groups == cases else ("groups", f" in {groups} {'group' if groups == 1 else 'groups'}")
    counted = f"{cases} {'case' if cases == 1 else 'cases'}{of}"
    if groups < FEWEST_GROUPS:
        return f"{counted}: mean ({TOO_FEW})"
    return f"{counted}: mean [{100 * level:g} % interval, bootstrap over {own}]"


def _title(metric: Metric) -> str:
    notes = [metric.unit] if metric.unit in ("nat", "distance") else []
    notes += [metric.convention or "pooled over voxels"] if metric.bins or metric.pooled else []
    return metric.title + (f" ({', '.join(notes)})" if notes else "")


def _digits(value: float) -> int:
    """Return how many decimals show three digits of a value; the whole row has as many."""
    return 3 if value == 0 else min(max(2 - math.floor(math.log10(abs(value))), 1), 7)


def _text(one: Interval, digits: int, sign: str = "") -> str:
    if one.value is None:
        return "–"
    value, low, high = (f"{number or 0.0:{sign}z.{digits}f}" for number in (one.value, one.low, one.high))
    return value if one.low is None else f"{value} [{low}, {high}]"


def _notes(result: Evaluation, width: int) -> list[str]:
    notes = ["↓ lower is better, ↑ higher is better"]
    if result.after is not None:
        room = f"\nfor intervals of each and counts of cases: a terminal of {WIDE} columns, or --csv and --json"
        notes[0] += "; after - before is paired" + (", and its last column counts cases" if width >= WIDE else room)
    binned: dict[str, list[str]] = {}
    for name, metric in result.metrics.items():
        binned.setdefault(metric.convention, []).append(name)
    notes += [result.raters] if result.raters else []
    notes += [f"{', '.join(names)}: {convention}" for convention, names in binned.items() if convention]
    notes += _nowhere(result)
    for name in result.metrics:
        last = (result.after or result.before)[name]
        if last.undefined and last.cases:
            few = f", {TOO_FEW}" if last.low is None else ""
            notes.append(f"{name}: not defined for {last.undefined} of {last.undefined + last.cases} cases{few}")
    if result.fitted_on:
        cases = len({row["case"] for row in result.rows})
        notes.append(f"{result.fitted_on} of {cases} cases were used in the fit: their numbers are too favourable")
    rows = [row for row in result.rows if row["stage"] == "before"]
    ignored, counted = (sum(row[key] for row in rows) for key in ("ignored", "voxels"))
    if ignored:
        notes.append(f"{100 * ignored / (ignored + counted):.2g} % of the voxels are ignored")
    return notes


def _nowhere(result: Evaluation) -> list[str]:
    why: dict[str, list[str]] = {}
    for name in (name for name in result.metrics if not result._defined(name)):
        unchanged = result.after is not None and name.endswith("_flips")
        said = "no label changed, so these are not defined" if unchanged else "not defined for any case"
        why.setdefault(said, []).append(name)
    return [f"{said}: {', '.join(names)}" for said, names in why.items()]


def plain_by_part(results: Mapping[str, Evaluation]) -> dict[str, object]:
    """Return the estimates as plain data: of the first set at the top, of the fitted-on cases apart."""
    documents: dict[str, dict[str, object]] = {}
    for name, result in results.items():
        plain = result.to_plain()
        kept = {key: plain[key] for key in ("before", "after", "change", "level", "calibrator", "raters")}
        documents[name] = {"part": name, **kept, "cases": len({row["case"] for row in result.rows})}
    first, *rest = documents.values()
    return {**first, "fitted_on": rest[0] if rest else None}


def labelled_rows(results: Mapping[str, Evaluation]) -> list[dict[str, object]]:
    """Return the rows of all sets, each with the name of its set after that of its case."""
    return [
        {"case": row["case"], "part": name, **{key: value for key, value in row.items() if key != "case"}}
        for name, result in results.items()
        for row in result.rows
    ]
