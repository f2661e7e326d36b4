"""Measure region models, and write their rows of the board.

    python -m paper.regions.measure measure paper/results/regions.json OUT --tasks cardiac
    python -m paper.regions.measure write paper/results/regions.json

OUT is what ``paper/regions/train.py`` predicted. Cases are divided by patient, or by stretch of the video, into
those to fit on and those to test on, several times; every calibrator is fitted to the same cases and measured on the
same others, region by region. A task that is measured again replaces what the file says of it.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import segcal
from paper.board import Row, counted, number, write_rows
from paper.regions.train import IGNORE, REGIONS
from segcal.cases import Cases
from segcal.evaluation import Evaluation
from segcal.resample import Draws
from segcal.statistics import BandCache
from segcal.summary import difference, estimate

CALIBRATORS = ("none", "ts", "conic", "conic_class", "platt", "isotonic")
OWN = "conic_class"
PEERS = ("none", "ts", "platt", "isotonic")
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE"}
VIDEO = re.compile(r"(.+_f?\d+)\d\d$")
GROUPS = {"cardiac": re.compile(r"(patient\d+)_"), "streets": VIDEO, "unions": VIDEO, "blocks": VIDEO}
WORDS = {
    "cardiac": "cardiac, nested regions",
    "blocks": "streets, places that the network saw",
    "streets": "streets, a place that no network saw",
    "unions": "streets, unions of classes of a softmax ensemble",
}
LEVEL = 0.95


class Measured(NamedTuple):
    """One calibrator in one repeat: what was measured, and pairs of voxels and regions that stand the wrong way."""

    result: Evaluation
    turned: int
    new: int


def load(folder: Path, task: str) -> Cases:
    """Return the cases of a task."""
    scores, labels, ids = [], [], []
    for path in sorted(folder.glob(f"{task}_*.npz")):
        with np.load(path) as stored:
            for name in (key.removesuffix("/logits") for key in stored if key.endswith("/logits")):
                scores.append(stored[f"{name}/logits"])
                labels.append(stored[f"{name}/labels"].astype(np.int64))
                ids.append(name)
    found = [GROUPS[task].match(name) for name in ids]
    groups = [name if match is None else match[1] for name, match in zip(ids, found, strict=True)]
    if task != "cardiac":  # pictures are one slice
        scores, labels = [each[:, 0] for each in scores], [each[0] for each in labels]
    how = {"kind": "logits", "regions": REGIONS[task], "ignore": IGNORE[task], "groups": groups}
    return segcal.ArrayCases(scores, labels, ids=ids, **how)


def measure(name: str, fit_on: Cases, test: Cases, voxels: int, bands: BandCache) -> Measured:
    """Fit one calibrator and measure it."""
    config = segcal.FitConfig(voxels=voxels, **({"lam": 0.0, "mu": 0.0} if name == "platt" else {}))
    calibrator = segcal.fit("identity" if name == "none" else name, fit_on, config=config).calibrator
    metrics = [*METRICS, "dice", "flip_rate"]
    result = segcal.evaluate(test, calibrator, metrics=metrics, bands=bands)
    turned = new = 0
    assert test.regions is not None
    for case in segcal.evaluation.slabs.as_seen(test, calibrator):
        odds = segcal.evaluation.slabs.calibrated_scores(calibrator, case)
        for inner, outer in test.regions.nested:
            wrong = odds[inner] > odds[outer]
            turned += int(wrong.sum())
            new += int((wrong & (case.logits[inner] <= case.logits[outer])).sum())
    return Measured(result, turned, new)


def columns(found: list[Measured], metric: str) -> list[np.ndarray]:
    """Return one number per case of every repeat, after calibration."""
    kept = [[row for row in one.result.rows if row["stage"] == "after"] for one in found]
    return [np.array([np.nan if row[metric] is None else row[metric] for row in rows]) for rows in kept]


def summarised(found: dict[str, list[Measured]], regions: list[str], draws: Draws) -> dict[str, Any]:
    """Return what was measured of a task: value, low and high, of every region, and what regions say together."""
    kept: dict[str, Any] = {}
    for region in regions:
        rows: dict[str, Any] = {}
        for name, repeats in found.items():
            rows[name] = {}
            for metric in [*METRICS, "dice"]:
                one = estimate(columns(repeats, f"{metric} ({region})"), draws, LEVEL)
                rows[name][metric] = [one.value, one.low, one.high]
            rows[name]["flips"] = float(np.concatenate(columns(repeats, f"flip_rate ({region})")).mean())
        gaps: dict[str, Any] = {}
        for peer in PEERS:
            pairs = {
                metric: [columns(found[name], f"{metric} ({region})") for name in (peer, OWN)] for metric in METRICS
            }
            every = {metric: difference(*pair, draws, "lower", LEVEL) for metric, pair in pairs.items()}
            gaps[peer] = {metric: [gap.value, gap.low, gap.high] for metric, gap in every.items()}
        kept[region] = {"calibrators": rows, "against": gaps}
    return kept


def all_regions(repeats: list[Measured]) -> dict[str, float]:
    """Return what regions say together."""
    changed = float(np.concatenate(columns(repeats, "label_map_flips")).mean())
    return {"changed": changed} | {what: sum(getattr(one, what) for one in repeats) for what in ("turned", "new")}


def rows(kept: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of the board of all tasks."""
    for task, words in WORDS.items():
        if task not in kept:
            continue
        found = kept[task]
        repeats, (fitted, tested) = len(found["sizes"]), found["sizes"][0]
        counts = {"cases": found["cases"], "groups": found["groups"], "cases to fit on": fitted, "test cases": tested}
        yield from counted(words, "division", counts)
        for region, of_region in found["regions"].items():
            yield from of_one(f"{words}: {region}", of_region, repeats)
        for name, row in found["together"].items():
            yield Row(words, name, "label map changed, %", number(100 * row["changed"], ".3f"), repeats=repeats)
            yield from counted(words, name, {"nesting violations": row["turned"], "new nesting violations": row["new"]})


def of_one(where: str, found: dict[str, Any], repeats: int) -> Iterator[Row]:
    """Yield the rows of one region: every calibrator, and ours against its peers."""
    for name, row in found["calibrators"].items():
        for metric, title in (METRICS | {"dice": "Dice"}).items():
            yield Row(where, name, title, *map(number, row[metric]), repeats=repeats)
        yield Row(where, name, "mask changed, %", number(100 * row["flips"], ".3f"), repeats=repeats)
    for peer, row in found["against"].items():
        for metric, title in METRICS.items():
            yield Row(where, f"{OWN} against {peer}", title, *map(number, row[metric]), repeats=repeats)


def measured(folder: Path, task: str, repeats: int, voxels: int, first: int) -> Iterator[dict[str, Any]]:
    """Yield what is measured of a task, after every division."""
    cases = load(folder, task)
    assert cases.regions is not None
    half = len(cases) // 2
    found: dict[str, list[Measured]] = {name: [] for name in CALIBRATORS}
    sizes = []
    for seed in range(first, first + repeats):
        split = cases.split(cal=half, seed=seed)
        sizes.append((len(split.cal), len(split.test)))
        bands = BandCache()
        for name in CALIBRATORS:
            found[name].append(measure(name, split.cal, split.test, voxels, bands))
            print(f"{task}: repeat {seed}, {name}", file=sys.stderr, flush=True)
        groups = [[row["group"] for row in one.result.rows if row["stage"] == "after"] for one in found["none"]]
        draws = Draws(groups, 2000, 0)
        yield {
            "cases": len(cases),
            "groups": len(set(cases.groups.values())),
            "sizes": sizes,
            "regions": summarised(found, list(cases.regions.names), draws),
            "together": {name: all_regions(of_name) for name, of_name in found.items()},
        }


def main() -> None:
    """Measure, or write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "write"))
    parser.add_argument("results", type=Path, help="a JSON file")
    parser.add_argument("folder", type=Path, nargs="?", help="predictions, to measure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="seed of the first division")
    parser.add_argument("--voxels", type=int, default=2000, help="of each case, in a fit")
    parser.add_argument("--tasks", nargs="+", default=list(WORDS))
    chosen = parser.parse_args()
    kept = json.loads(chosen.results.read_text("utf-8")) if chosen.results.is_file() else {}
    if chosen.what == "measure":
        for task in chosen.tasks:
            for found in measured(chosen.folder, task, chosen.repeats, chosen.voxels, chosen.first):
                kept[task] = found
                chosen.results.write_text(json.dumps(kept) + "\n", encoding="utf-8")
        return
    write_rows("regions", rows(kept))


if __name__ == "__main__":
    main()
