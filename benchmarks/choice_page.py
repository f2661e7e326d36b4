"""The section of docs/results.md on what the default is worth, from the lines that ``benchmarks/choice.py`` wrote.

    python benchmarks/choice_page.py results/choice > section.md

A rule counts as worse in a division if its NLL over the test cases is higher by more than two standard errors (over
groups of test cases) than that of temperature scaling, or of nothing, with the same pooling.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TITLES = {
    "roads": "roads, every picture a group",
    "cardiac": "cardiac, patients as groups",
    "camvid_few": "camvid, 60 frames, every frame a group",
    "camvid": "camvid, 334 frames, every frame a group (seeds 0 to 19)",
    "camvid_by_video": "camvid, 60 frames, fitted on two videos, tested on the third; videos as groups",
}
INTRO = """Mean NLL over all cases that had no part in the choice, averaged over random divisions; *cases* is the size
of the calibration set. *Nothing* is the better pooling without calibration. *Worse* counts divisions in which a rule is
worse than `ts`, or than nothing, in its own pooling by more than two standard errors over the groups of the test cases
(by anything, where these are one group).
Fits and tests see 20,000 voxels of each case. Seeds 20 and up where nothing else is said: the limits of the rule were
set on seeds 0 to 19, except that the harm to most groups counts of fewer than ten groups only, which cardiac with 25
cases showed; lines other than that one, camvid with 3 and 6 cases and the videos were measured before it."""
HEAD = (
    "| cases | divisions | nothing | `ts` (probs) | `ts` (logits) | rule of 0.1 | rule of now | 0.1 worse than `ts` / "
    "nothing | now worse than `ts` / nothing | chosen now |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


def choice(folder: Path) -> Iterator[str]:
    """Yield the lines of the section."""
    if not folder.is_dir():
        return
    yield "## What the default is worth"
    yield ""
    yield INTRO
    for name, title in TITLES.items():
        path = folder / f"{name}.jsonl"
        if path.exists():
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            yield from ("", f"### {title}", "", HEAD)
            for size in sorted({row["size"] for row in rows}):
                yield _line(size, [row for row in rows if row["size"] == size])
            yield from ("", *_against_ts(rows))
    yield ""


def _line(size: int, rows: Sequence[dict[str, Any]]) -> str:
    mean = {key: float(np.mean([row["nll"][key] for row in rows])) for key in rows[0]["nll"]}
    nothing = min(mean["identity(mean_probs)"], mean["identity(mean_logits)"])
    chosen = ", ".join(f"{name} {count}" for name, count in Counter(row["new"] for row in rows).most_common())
    numbers = [nothing, mean["ts(mean_probs)"], mean["ts(mean_logits)"], mean["old"], mean["new"]]
    cells = [str(size), str(len(rows)), *(f"{number:.4f}" for number in numbers)]
    cells += [" / ".join(str(_worse(rows, rule, other)) for other in ("ts", "identity")) for rule in ("old", "new")]
    return f"| {' | '.join([*cells, chosen])} |"


def _pooling(row: dict[str, Any], rule: str) -> str:
    return "mean_logits" if rule == "old" else row["new"].partition("(")[2].rstrip(")")


def _worse(rows: Sequence[dict[str, Any]], rule: str, other: str) -> int:
    found = [row["differences"][f"{rule} - {other}({_pooling(row, rule)})"] for row in rows]
    return sum(each["mean"] > 1e-9 and (each["error"] is None or each["mean"] > 2 * each["error"]) for each in found)


def _against_ts(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how the default compares with temperature scaling in both poolings, at the largest size."""
    size = max(row["size"] for row in rows)
    largest = [row for row in rows if row["size"] == size]
    for pooling in ("mean_probs", "mean_logits"):
        found = np.array([row["differences"][f"new - ts({pooling})"]["mean"] for row in largest])
        low, high = np.percentile(found, [2.5, 97.5])
        yield (
            f"- Default minus `ts({pooling})` with {size} cases: {found.mean():+.4f} NLL, 95 % of the divisions "
            f"between {low:+.4f} and {high:+.4f}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(choice(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
