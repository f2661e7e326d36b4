"""Results of `learned_context.py` as rows of the board.

``python -m paper.learned_rows FILE... -o results/learned.json`` joins what several runs wrote; of equal rows, the
last counts. A row of the board is one mean over the test cases of all divisions; differences are paired, with the
interval of segcal's bootstrap over divisions and cases: the rows do not say which cases belong together. ACE pools
voxels: its interval is the range over divisions.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from paper.board import Row, measured, number
from segcal.benchmark.summaries import compare_repeats
from segcal.resample import Draws
from segcal.summary import Compared, difference, estimate, over_repeats

ROWS = ("ts", "cms_ap", "conic", "conic_class", "pointwise", "dilated", "trained", "learned")
AGAINST = dict.fromkeys(("conic_class", "pointwise", "dilated", "trained", "learned"), "conic")
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
Found = Mapping[str, Sequence[Mapping[str, Any]]]


def learned(path: Path) -> Iterator[Row]:
    """Yield the rows of every task, and how they differ from conic scaling."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for task in dict.fromkeys(row["task"] for row in rows):
        found = rows_of(rows, task)
        for name, own in found.items():
            count = len(own)
            yield Row(task, name, "parameters", number(own[0]["parameters"], "d"), repeats=count)
            for metric, title in METRICS.items():
                yield Row(task, name, title, number(mean(own, metric)), repeats=count)
            flips = sum(row["means"]["flip_rate"] for row in own)
            yield Row(task, name, "flips", number(flips, "g"), repeats=count)
        for name, other in AGAINST.items():
            for metric, title in METRICS.items():
                gap = compared(found[other], found[name], metric).difference
                for row in measured(task, f"{name} against {other}", title, gap):
                    yield replace(row, repeats=len(found[name]))


def mean(rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Return the mean over divisions, of the means over cases."""
    if metric == "ace":
        return over_repeats([row["means"][metric] for row in rows]).value
    own = columns(rows, metric)
    return estimate(own, Draws([len(column) for column in own])).value


def rows_of(rows: Sequence[Mapping[str, Any]], task: str) -> Found:
    """Return the divisions of every row of a task that all of its rows have."""
    good = [row for row in rows if row["task"] == task and "means" in row and "size" not in row]
    repeats = set.intersection(*({row["repeat"] for row in good if row["row"] == name} for name in ROWS))
    return {
        name: sorted(
            (row for row in good if row["row"] == name and row["repeat"] in repeats), key=lambda row: row["repeat"]
        )
        for name in ROWS
    }


def columns(rows: Sequence[Mapping[str, Any]], metric: str) -> list[np.ndarray]:
    """Return one number per case, by division."""
    return [np.array([np.nan if value is None else value for value in row["cases"][metric]], float) for row in rows]


def compared(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], metric: str) -> Compared:
    """Return the paired difference, second minus first."""
    if metric == "ace":
        return compare_repeats(*([row["means"]["ace"] for row in rows] for rows in (first, second)), "lower")
    before, after = columns(first, metric), columns(second, metric)
    gap = difference(before, after, Draws([len(column) for column in before]))
    return Compared(gap.verdict(), gap, "cases")


def joined(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the rows of several runs, numbers rounded to what is shown and a little more."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    about = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        about.append(content["about"])
        for row in content["rows"]:
            if "means" in row:
                del row["cases"]["flip_rate"]  # all of them are in the mean
                row["cases"] = {name: [_short(value) for value in column] for name, column in row["cases"].items()}
            rows[row["task"], row["repeat"], row["row"], row.get("size")] = row
    return {"about": about, "rows": list(rows.values())}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.write_text(json.dumps(joined(args.files), separators=(",", ":")) + "\n", encoding="utf-8")
