"""Results of `learned_context.py` as a section of the page of conic scaling.

``python -m paper.learned_page FILE... -o results/learned.json`` joins what several runs wrote; of equal rows, the
last counts. A row of the page is one mean over the test cases of all divisions; differences are paired, with the
interval of segcal's bootstrap over divisions and cases: the rows do not say which cases belong together. ACE pools
voxels: its interval is the range over divisions.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.benchmark.summaries import compare_repeats
from segcal.resample import Draws
from segcal.summary import Compared, difference, estimate, over_repeats

ROWS = ("ts", "cms_ap", "conic", "conic_class", "pointwise", "dilated", "trained", "learned")
AGAINST = dict.fromkeys(("conic_class", "pointwise", "dilated", "trained", "learned"), "conic")
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
HEAD = """## Learned contexts, and networks

Written from `paper/results/learned.json`, which `paper/learned_context.py` made on one H200 from packed
predictions (`paper/learned_pack.py`: gaps in steps of (1 + gap) / 32, street scenes at every second voxel),
so numbers differ a little from those above. Divisions are the same. Trainings have at most 1000 steps and end early
where validation cases do not gain; longer ones were not tried. `pointwise` and `dilated` are networks that
give every class a factor; `trained` is a conic layer with three contexts of a convolutional network beside the usual
three, trained together; `learned` has the same contexts, and coefficients fitted anew to their certified optimum.
"""

Found = Mapping[str, Sequence[Mapping[str, Any]]]


def section(path: Path) -> Iterator[str]:
    """Yield the section, as lines."""
    content = json.loads(path.read_text(encoding="utf-8"))
    failed = [row for row in content["rows"] if "error" in row]
    yield HEAD
    if failed:
        yield f"Rows that failed and are missing below: {len(failed)}.\n"
    against: dict[str, dict[str, Compared]] = {}
    for task in dict.fromkeys(row["task"] for row in content["rows"]):
        found = rows_of(content["rows"], task)
        yield from table(task, found)
        against[task] = {name: compared(found["conic"], found["learned"], name) for name in METRICS}
    yield verdict(against)


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


def cell(one: Compared) -> str:
    """Return a difference with its interval, bold where that is on one side of zero and shows."""
    gap = one.difference
    if gap.value is None or gap.low is None or gap.high is None:
        return "—"
    text = f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
    shows = max(abs(gap.low), abs(gap.high)) >= 5e-5 and gap.cases > 1  # one division has no range
    return f"**{text}**" if shows and one.verdict in ("better", "worse") else text


def table(task: str, found: Found) -> Iterator[str]:
    """Yield the rows of a task, and under them how they differ from conic scaling."""
    count = len(found["conic"])
    yield f"**{task}**, {count} division{'s' if count > 1 else ''}\n"
    yield f"| row | parameters | {' | '.join(METRICS.values())} | flips |"
    yield f"|---|---:|{'---:|' * (len(METRICS) + 1)}"
    for name, rows in found.items():
        cells = []
        for metric in METRICS:
            values = [row["means"][metric] for row in rows]
            if metric == "ace":
                one = over_repeats(values)
            else:
                own = columns(rows, metric)
                one = estimate(own, Draws([len(column) for column in own]))
            cells.append(f"{one.value:.4f}")
        flips = sum(row["means"]["flip_rate"] for row in rows)
        yield f"| `{name}` | {rows[0]['parameters']:,} | {' | '.join(cells)} | {flips:g} |"
    for name, other in AGAINST.items():
        cells = [cell(compared(found[other], found[name], metric)) for metric in METRICS]
        yield f"| `{name}` against `{other}` | | {' | '.join(cells)} | |"
    yield ""


def verdict(against: Mapping[str, Mapping[str, Compared]]) -> str:
    """Return whether learned contexts stay."""
    won = [task for task, found in against.items() if found["nll"].verdict == "better"]
    lost = [
        f"{METRICS[name]} on {task}"
        for task, found in against.items()
        for name, one in found.items()
        if one.verdict == "worse"
    ]
    kept = len(won) > 1 and not lost
    return (
        "Learned contexts would stay if their likelihood were better than that of `conic` on two ensembles or more, "
        f"and nothing worse on any, with intervals that exclude zero. Better: {', '.join(won) or 'nowhere'}. Worse: "
        f"{', '.join(lost) or 'nothing'}. {'They stay.' if kept else 'They are no part of the package.'}\n"
    )


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
