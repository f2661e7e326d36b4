"""The section of docs/results.md on the default elsewhere, from the lines that ``paper/transfer.py`` wrote.

    python -m paper.transfer_page results/transfer > section.md

A rule is *worse* in a division if its mean over the test cases is higher than that of temperature scaling, or of
nothing, by more than two standard errors over groups of test cases. *Worst cases* is the mean of the worst 5 % of the
differences of NLL of single cases. The table of all tasks has the divisions that all of its rules were measured in.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.fitting.choice import worst_mean

TASKS = {"cardiac": "cardiac, by disease", "camvid": "street scenes, by video", "roads": "roads, by area"}
RULES = {
    "new": "default", "old": "default before", "mixture": "before, half way to `ts`", "sites": "before, with sites",
    "shrinkage": "before, with shrinkage", "all": "default, half way to `ts`",
}  # fmt: skip
METRICS = ("nll", "ece", "ba_ece")
BOUND = 0.02
INTRO = """Calibrated at one site or two, tested at the others: cardiac patients by disease, street scenes by video (the
first at dusk, the others by day), roads by area; each with all calibration cases, and with that half of their groups
which has least of one class. Means over divisions of means over test cases. *Worse* counts divisions in which NLL / ECE
/ BA-ECE are higher than those of `ts`, or of nothing, with the same pooling by more than two standard errors over
groups of test cases. *Worst cases* is the mean of the worst 5 % of the differences of NLL of single cases: of all test
cases of all divisions; then by division its mean, its largest, and in how many it is above +0.02 nats."""
HEAD = (
    "| rule | divisions | NLL | ECE | BA-ECE | `ts` NLL | nothing NLL | worse than `ts` | worse than nothing | "
    "worst cases against `ts` | against nothing | chosen |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


def transfer(folder: Path) -> Iterator[str]:
    """Yield the lines of the section."""
    if not folder.is_dir():
        return
    yield "## The default elsewhere\n"
    yield INTRO
    rows = {name: _read(folder / f"{name}.jsonl") for name in TASKS}
    everywhere = set(RULES).intersection(*({row["rule"] for row in own} for own in rows.values() if own))
    every = [row for own in rows.values() for row in _by_all(own, everywhere)]
    for title, own in (("all tasks", every), *((TASKS[name], own) for name, own in rows.items())):
        if own:
            yield from ("", f"### {title[0].upper()}{title[1:]}", "", HEAD)
            yield from (_line(rule, some) for rule in RULES if (some := [row for row in own if row["rule"] == rule]))
    yield from _regret(_read(folder / "regret.jsonl"))
    yield from _candidates({name: _read(folder / f"candidates_{name}.jsonl") for name in TASKS})
    yield ""


def _by_all(rows: Sequence[dict[str, Any]], rules: set[str]) -> list[dict[str, Any]]:
    """Return the rows of the divisions that each of these rules was measured in, so that their means compare."""
    known = {(row["division"], row["rule"]) for row in rows}
    return [row for row in rows if row["rule"] in rules and all((row["division"], one) in known for one in rules)]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _line(rule: str, rows: Sequence[dict[str, Any]]) -> str:
    means = {name: np.mean([row["means"][name] for row in rows], axis=0) for name in ("default", "ts", "identity")}
    cells = [RULES[rule], str(len(rows)), *(f"{one:.4f}" for one in means["default"])]
    cells += [f"{means[name][0]:.4f}" for name in ("ts", "identity")]
    for other in ("ts", "identity"):
        cells.append(" / ".join(str(sum(_is_worse(row["against"][other][what]) for row in rows)) for what in METRICS))
    for other in ("ts", "identity"):
        worst = [row["against"][other]["worst"] for row in rows]
        every = worst_mean([one for row in rows for one in row["against"][other]["cases"]])
        cells.append(f"{every:+.4f}; {np.mean(worst):+.4f}, {max(worst):+.4f}, {sum(one > BOUND for one in worst)}")
    chosen = Counter(row["chosen"] for row in rows).most_common()
    return f"| {' | '.join([*cells, ', '.join(f'{name} {count}' for name, count in chosen)])} |"


def _is_worse(found: Sequence[float | None]) -> bool:
    mean, error = found
    return mean is not None and mean > 1e-9 and mean > 2 * (error or 0.0)


def _regret(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how far the choice is from the best candidate, where there are random divisions."""
    if not rows:
        return
    yield from ("", "### Regret of the choice, 20 cardiac cases", "")
    yield "NLL of what is chosen minus that of the best candidate in its pooling on all other cases, over divisions."
    yield from (
        "",
        "| rule | divisions | mean | median | largest | chosen | best |",
        "|---|---:|---:|---:|---:|---|---|",
    )
    for rule in RULES:
        own = [row for row in rows if row["rule"] == rule]
        if own:
            lost = [row["regret"] for row in own]
            names = [
                ", ".join(f"{name} {count}" for name, count in Counter(row[key] for row in own).most_common())
                for key in ("chosen", "best")
            ]
            numbers = [f"{one:.4f}" for one in (np.mean(lost), np.median(lost), max(lost))]
            yield f"| {' | '.join([RULES[rule], str(len(own)), *numbers, *names])} |"


def _candidates(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield what every candidate is worth on random divisions, and how `conic_class` compares with two others."""
    for task, own in rows.items():
        if not own:
            continue
        yield from ("", f"### All candidates, {TASKS[task].partition(',')[0]}, {len(own)} random divisions", "")
        yield from ("| calibrator | NLL | ECE | BA-ECE |", "|---|---:|---:|---:|")
        for name in own[0]["means"]:
            means = np.mean([row["means"][name] for row in own], axis=0)
            yield f"| `{name}` | {' | '.join(f'{one:.4f}' for one in means)} |"
        yield ""
        for other, what in (("cms_ap", 0), ("conic", 2), ("conic", 0), ("ts", 0)):
            found = [row["means"]["conic_class"][what] - row["means"][other][what] for row in own]
            low, high = np.percentile(found, [2.5, 97.5])
            title = ("NLL", "ECE", "BA-ECE")[what]
            lower = sum(one < 0 for one in found)
            yield (
                f"- `conic_class` minus `{other}`, {title}: {np.mean(found):+.4f} (middle 95 % of divisions "
                f"{low:+.4f} to {high:+.4f}; lower in {lower} of {len(found)})."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(transfer(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
