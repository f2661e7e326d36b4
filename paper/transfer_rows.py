"""The rows of the board on the default elsewhere, from the lines that ``paper/transfer.py`` wrote.

A rule is *worse* in a division if its mean over the test cases is higher than that of temperature scaling, or of
nothing, by more than two standard errors over groups of test cases. *Worst cases* is the mean of the worst 5 % of the
differences of NLL of single cases. All tasks together: the divisions that all rules were measured in.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paper.board import Row, counted, measured, number
from segcal.fitting.choice import worst_mean
from segcal.summary import Interval

TASKS = {"cardiac": "cardiac, by disease", "camvid": "street scenes, by video", "roads": "roads, by area"}
RULES = {
    "new": "default", "old": "default before", "mixture": "before, half way to ts", "sites": "before, with sites",
    "shrinkage": "before, with shrinkage", "all": "default, half way to ts",
}  # fmt: skip
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE"}
OTHERS = {"ts": "ts", "identity": "nothing"}
BOUND = 0.02


def transfer(folder: Path) -> Iterator[Row]:
    """Yield the rows of every task."""
    for name, title in TASKS.items():
        yield from _rules(title, _read(folder / f"{name}.jsonl"))


def parts(folder: Path) -> Iterator[Row]:
    """Yield what each part of the rule is worth where all were measured, the regret of the choice, and candidates."""
    rows = {name: _read(folder / f"{name}.jsonl") for name in TASKS}
    everywhere = set(RULES).intersection(*({row["rule"] for row in own} for own in rows.values() if own))
    yield from _rules("all tasks", [row for own in rows.values() for row in _by_all(own, everywhere)])
    yield from _regret(_read(folder / "regret.jsonl"))
    for name, title in TASKS.items():
        yield from _candidates(title.partition(",")[0], _read(folder / f"candidates_{name}.jsonl"))


def _by_all(rows: Sequence[dict[str, Any]], rules: set[str]) -> list[dict[str, Any]]:
    """Return the rows of the divisions that each of these rules was measured in, so that their means compare."""
    known = {(row["division"], row["rule"]) for row in rows}
    return [row for row in rows if row["rule"] in rules and all((row["division"], one) in known for one in rules)]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _rules(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    for rule, method in RULES.items():
        own = [row for row in rows if row["rule"] == rule]
        if own:
            yield from _rule(title, method, own)


def _rule(title: str, method: str, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    means = {name: np.mean([row["means"][name] for row in rows], axis=0) for name in ("default", *OTHERS)}
    yield from counted(title, method, {"divisions": len(rows)})
    for metric, value in zip(METRICS.values(), means["default"], strict=True):
        yield Row(title, method, metric, number(value))
    for other, words in OTHERS.items():
        yield Row(title, f"{words}, divisions of {method}", "NLL", number(means[other][0]))
        for metric, name in METRICS.items():
            worse = sum(_is_worse(row["against"][other][metric]) for row in rows)
            yield from counted(title, method, {f"divisions worse than {words} in {name}": worse})
        worst = [row["against"][other]["worst"] for row in rows]
        every = worst_mean([one for row in rows for one in row["against"][other]["cases"]])
        for name, value in (
            ("all cases", every),
            ("mean of divisions", np.mean(worst)),
            ("largest of divisions", max(worst)),
        ):
            yield Row(title, method, f"worst 5 %, {name}, against {words}, nats", number(value))
        high = sum(one > BOUND for one in worst)
        yield from counted(title, method, {f"divisions with worst 5 % above {BOUND} against {words}": high})
    for name, count in Counter(row["chosen"] for row in rows).most_common():
        yield from counted(title, method, {f"chosen: {name}": count})


def _is_worse(found: Sequence[float | None]) -> bool:
    mean, error = found
    return mean is not None and mean > 1e-9 and mean > 2 * (error or 0.0)


def _regret(rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield how far the choice is from the best candidate, where there are random divisions."""
    title = "cardiac, 20 cases"
    for rule, method in RULES.items():
        own = [row for row in rows if row["rule"] == rule]
        if own:
            lost = [row["regret"] for row in own]
            yield from counted(title, method, {"divisions": len(own)})
            for name, value in (("mean", np.mean(lost)), ("median", np.median(lost)), ("largest", max(lost))):
                yield Row(title, method, f"regret, {name}", number(value))
            for key in ("chosen", "best"):
                for name, count in Counter(row[key] for row in own).most_common():
                    yield from counted(title, method, {f"{key}: {name}": count})


def _candidates(title: str, rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield what every candidate is worth on random divisions, and how `conic_class` compares with three others."""
    if not rows:
        return
    title = f"{title}, random divisions"
    for name in rows[0]["means"]:
        for metric, value in zip(METRICS.values(), np.mean([row["means"][name] for row in rows], axis=0), strict=True):
            yield Row(title, name, metric, number(value), repeats=len(rows))
    for other in ("ts", "cms_ap", "conic"):
        for what, metric in enumerate(METRICS.values()):
            found = [row["means"]["conic_class"][what] - row["means"][other][what] for row in rows]
            one = Interval(float(np.mean(found)), *map(float, np.percentile(found, [2.5, 97.5])))
            lower = f"lower in {sum(value < 0 for value in found)} of {len(found)}"
            yield from measured(title, f"conic_class against {other}", metric, one, note=lower)
