"""The section of the page on models of regions, from what ``paper/regions/page.py`` measured."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "regions.json"
OWN, MOVING = "conic_class", ("platt", "isotonic")
TASKS = {
    "cardiac": "cardiac",
    "blocks": "streets",
    "unions": "streets, ensemble",
    "streets": "streets, new place",
}
INTRO = """## Models of regions

One sigmoid per region, calibrated with masks, label maps and nesting kept ([regions](regions.md)). NLL on test cases,
**bold** where it is lowest; in brackets the share of voxels whose mask changed. The last column is the paired
difference of `conic_class` to the better of the two that may move masks, with a 95 % interval over cases and divisions;
below zero `conic_class` is better. All numbers: [regions_results.md](regions_results.md).
"""


def regions(path: Path = RESULTS) -> Iterator[str]:
    """Yield the section, if there are results for it."""
    if not path.is_file():
        return
    kept = json.loads(path.read_text("utf-8"))
    yield INTRO
    yield from nll_table(kept)
    yield ""


def nll_table(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield one row per region."""
    names = list(next(iter(next(iter(kept.values()))["regions"].values()))["calibrators"])
    yield f"| data | region | {' | '.join(names)} | `{OWN}` less the better of {' and '.join(MOVING)} |"
    yield f"|---|---|{'---:|' * (len(names) + 1)}"
    for task, words in TASKS.items():
        for region, found in kept.get(task, {"regions": {}})["regions"].items():
            rows = found["calibrators"]
            best = min(row["nll"][0] for row in rows.values())
            cells = [_cell(row["nll"][0], row["flips"], best) for row in rows.values()]
            peer = min(MOVING, key=lambda name: rows[name]["nll"][0])
            value, low, high = found["against"][peer]["nll"]
            yield f"| {words} | {region} | {' | '.join(cells)} | {value:+.4f} [{low:+.4f}, {high:+.4f}] |"


def _cell(nll: float, flips: float, best: float) -> str:
    text = f"**{nll:.4f}**" if nll == best else f"{nll:.4f}"
    return text if flips == 0 else f"{text} ({100 * flips:.2g} %)"


if __name__ == "__main__":
    print("\n".join(regions()))
