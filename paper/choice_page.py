"""The section of docs/results.md on what the default is worth, from the lines that ``paper/choice.py`` wrote.

    python -m paper.choice_page results/choice > section.md

A rule is *worse* in a division if its NLL over the test cases is higher by more than two standard errors (over groups
of test cases) than that of temperature scaling, or of nothing, with the same pooling. It is worse *beyond its noise* if
the difference is also larger than the 95 % interval which the choice itself states: Student's t over the groups that it
held out. One group states no noise, so nothing is beyond it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

OTHERS = ("ts", "identity")
TITLES = {
    "roads": "roads, every picture a group",
    "cardiac": "cardiac, patients as groups",
    "camvid": "camvid, 334 frames, every frame a group",
    "camvid_by_video": "camvid, 334 frames, fitted on two videos, tested on the third; videos as groups",
}
INTRO = """Mean NLL over all cases that had no part in the choice, averaged over random divisions; *cases* is the size
of the calibration set. *Nothing* is the better pooling without calibration. *Worse* counts divisions in which a rule is
worse than `ts`, or than nothing, in its own pooling by more than two standard errors over the groups of the test cases
(by anything, where these are one group); *beyond noise* counts those of them in which the difference is also larger
than the 95 % interval that the choice states itself (Student's t over the groups that it held out; one group states
none). *Before* is the default without sites, evidence per class and bounds on gains. Seeds 20 and up: the limits of
the rule before were set on seeds 0 to 19, that of fewer than ten groups on seeds 100 to 129 and 200 to 219."""
HEAD = (
    "| cases | divisions | nothing | `ts` (probs) | `ts` (logits) | before | now | before worse than `ts` / "
    "nothing | now worse than `ts` / nothing | beyond noise | chosen now |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


def choice(folder: Path) -> Iterator[str]:
    """Yield the lines of the section."""
    if not folder.is_dir():
        return
    yield "## What the default is worth\n"
    yield INTRO
    studies = {
        title: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name, title in TITLES.items()
        if (folder / f"{name}.jsonl").exists()
    }
    yield from ("", _counts([row for rows in studies.values() for row in rows]))
    for title, rows in studies.items():
        yield from ("", f"### {title}", "", HEAD)
        for size in sorted({row["size"] for row in rows}):
            yield _line(size, [row for row in rows if row["size"] == size])
        yield from ("", *_against_ts(rows))
    yield ""


def _counts(rows: Sequence[dict[str, Any]]) -> str:
    silent = [row for row in rows if None in row["stated"].values()]
    beyond = sum(any(_beyond(row, other) for other in OTHERS) for row in rows)
    old, new = (sum(any(_worse([row], rule, other) for other in OTHERS) for row in rows) for rule in ("old", "new"))
    harm = [_difference(row, "new", "identity") for row in rows]
    worst = max((one["mean"] for one in harm if _is_worse(one)), default=0.0)
    return (
        f"The default is worse than `ts`, or than nothing, beyond the noise that it states itself in {beyond} of "
        f"{len(rows)} divisions. {len(silent)} of them have cases of one group, which states none: nothing is changed "
        f"there, and `ts` is lower in {_worse(silent, 'new', 'ts')}. Of two groups the interval is wide. By two "
        f"standard errors of the test cases the default is worse than one of both in {new} divisions, the one before "
        f"in {old}; than nothing in {_worse(rows, 'new', 'identity')}, by at most {worst:.4f}."
    )


def _line(size: int, rows: Sequence[dict[str, Any]]) -> str:
    mean = {key: float(np.mean([row["nll"][key] for row in rows])) for key in rows[0]["nll"]}
    nothing = min(mean["identity(mean_probs)"], mean["identity(mean_logits)"])
    chosen = ", ".join(f"{name} {count}" for name, count in Counter(row["new"] for row in rows).most_common())
    numbers = [nothing, *(mean[key] for key in ("ts(mean_probs)", "ts(mean_logits)", "old", "new"))]
    cells = [str(size), str(len(rows)), *(f"{number:.4f}" for number in numbers)]
    for rule in ("old", "new"):
        cells.append(" / ".join(str(_worse(rows, rule, other)) for other in OTHERS))
    cells += [" / ".join(str(sum(_beyond(row, other) for row in rows)) for other in OTHERS)]
    return f"| {' | '.join([*cells, chosen])} |"


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


def _against_ts(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how the default compares with temperature scaling in both poolings, at the two largest sizes."""
    for size in sorted({row["size"] for row in rows})[-2:]:
        some = [row for row in rows if row["size"] == size]
        for pooling in ("mean_probs", "mean_logits"):
            texts = []
            for metric in ("nll", "ece"):
                found = np.array([row[metric]["new"] - row[metric][f"ts({pooling})"] for row in some])
                low, high = np.percentile(found, [2.5, 97.5])
                texts.append(f"{found.mean():+.4f} {metric.upper()} ({low:+.4f} to {high:+.4f})")
            yield (
                f"- Default minus `ts({pooling})` with {size} cases: {', '.join(texts)}; in brackets the middle 95 % "
                "of the divisions."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(choice(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
