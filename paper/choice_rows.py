"""The rows of the board on what the default is worth, from the lines that ``paper/choice.py`` wrote.

A rule is *worse* in a division if its NLL over the test cases is higher by more than two standard errors (over groups
of test cases) than that of temperature scaling, or of nothing, with the same pooling. It is worse *beyond its noise* if
the difference is also larger than the 95 % interval which the choice itself states: Student's t over the groups that it
held out. One group states no noise, so nothing is beyond it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from paper.board import Row, counted, measured, number
from segcal.summary import Interval

OTHERS = {"ts": "ts", "identity": "nothing"}
RULES = {"old": "default before", "new": "default"}
TITLES = {
    "roads": "roads, every picture a group",
    "cardiac": "cardiac, patients as groups",
    "camvid": "camvid, 334 frames, every frame a group",
    "camvid_by_video": "camvid, 334 frames, fitted on two videos, tested on the third; videos as groups",
}


def choice(folder: Path) -> Iterator[Row]:
    """Yield the rows."""
    studies = {
        title: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name, title in TITLES.items()
        if (folder / f"{name}.jsonl").exists()
    }
    for title, rows in studies.items():
        sizes = sorted({row["size"] for row in rows})
        for size in sizes:
            own = [row for row in rows if row["size"] == size]
            yield from _of_size(title, own, f", {size} cases")
            if size in sizes[-2:]:
                yield from _against_ts(title, own, f", {size} cases")
    if studies:
        yield from _totals([row for rows in studies.values() for row in rows])


def _of_size(title: str, rows: Sequence[dict[str, Any]], size: str) -> Iterator[Row]:
    mean = {key: float(np.mean([row["nll"][key] for row in rows])) for key in rows[0]["nll"]}
    found = {"nothing": min(mean["identity(mean_probs)"], mean["identity(mean_logits)"])}
    found |= {key: mean[key] for key in ("ts(mean_probs)", "ts(mean_logits)")}
    found |= {words: mean[rule] for rule, words in RULES.items()}
    for method, value in found.items():
        yield Row(title, method, f"NLL{size}", number(value))
    yield from counted(title, "default", {f"divisions{size}": len(rows)})
    for other, words in OTHERS.items():
        for rule, method in RULES.items():
            yield from counted(title, method, {f"divisions worse than {words}{size}": _worse(rows, rule, other)})
        beyond = sum(_beyond(row, other) for row in rows)
        yield from counted(title, "default", {f"divisions worse than {words} beyond noise{size}": beyond})
    for name, count in Counter(row["new"].replace(" ", "") for row in rows).most_common():
        yield from counted(title, "default", {f"chosen: {name}{size}": count})


def _totals(rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    silent = [row for row in rows if None in row["stated"].values()]
    harm = [_difference(row, "new", "identity") for row in rows]
    either = "divisions worse than ts or nothing"
    counts = {
        "divisions": len(rows),
        f"{either} beyond noise": sum(any(_beyond(row, other) for other in OTHERS) for row in rows),
        "divisions with cases of one group": len(silent),
        "divisions with cases of one group in which ts is lower": _worse(silent, "new", "ts"),
        "divisions worse than nothing": _worse(rows, "new", "identity"),
    }
    yield from counted("all tasks", "default", counts)
    for rule, method in RULES.items():
        worse = sum(any(_worse([row], rule, other) for other in OTHERS) for row in rows)
        yield from counted("all tasks", method, {either: worse})
    worst = max((one["mean"] for one in harm if _is_worse(one)), default=0.0)
    yield Row("all tasks", "default", "largest loss against nothing, NLL", number(worst))


def _difference(row: dict[str, Any], rule: str, other: str) -> dict[str, Any]:
    pooling = row[rule].partition("(")[2].rstrip(")")
    found: dict[str, Any] = row["differences"][f"{rule} - {other}({pooling})"]
    return found


def _worse(rows: Sequence[dict[str, Any]], rule: str, other: str) -> int:
    return sum(_is_worse(_difference(row, rule, other)) for row in rows)


def _is_worse(found: dict[str, Any]) -> bool:
    return found["mean"] > 1e-9 and (found["error"] is None or found["mean"] > 2 * found["error"])


def _beyond(row: dict[str, Any], other: str) -> bool:
    found, stated = _difference(row, "new", other), row["stated"][other]
    if stated is None or not _is_worse(found):
        return False
    return found["mean"] > float(student.ppf(0.975, row["groups"] - 1)) * stated


def _against_ts(title: str, rows: Sequence[dict[str, Any]], size: str) -> Iterator[Row]:
    """Yield how the default compares with temperature scaling in both poolings; ends hold 95 % of the divisions."""
    for pooling in ("mean_probs", "mean_logits"):
        for metric in ("nll", "ece"):
            found = np.array([row[metric]["new"] - row[metric][f"ts({pooling})"] for row in rows])
            one = Interval(float(found.mean()), *map(float, np.percentile(found, [2.5, 97.5])))
            yield from measured(title, f"default against ts({pooling})", f"{metric.upper()}{size}", one)
