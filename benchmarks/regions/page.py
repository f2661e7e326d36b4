"""Write the page of region models: ``python benchmarks/regions/page.py OUT -o docs/regions_results.md``.

OUT is what ``benchmarks/regions/train.py`` predicted. Cases are divided by patient, or by stretch of the video, into
those to fit on and those to test on, several times; every calibrator is fitted to the same cases and measured on the
same others, region by region.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from train import IGNORE, REGIONS

import segcal
from segcal.cases import Cases
from segcal.evaluation import Evaluation
from segcal.statistics import BandCache
from segcal.summary import Draws, difference, estimate

CALIBRATORS = ("none", "ts", "conic", "conic_class", "platt", "isotonic")
OWN = "conic_class"
PEERS = ("none", "ts", "platt", "isotonic")
METRICS = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE"}
VIDEO = re.compile(r"(.+_f?\d+)\d\d$")
GROUPS = {"cardiac": re.compile(r"(patient\d+)_"), "streets": VIDEO, "unions": VIDEO}
WORDS = {
    "cardiac": "Cardiac volumes: nested regions",
    "streets": "Street scenes: overlapping groups, in a place that the network never saw",
    "unions": "Street scenes: the same groups, as unions of classes of a softmax ensemble",
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


def table(found: dict[str, list[Measured]], regions: list[str], draws: Draws) -> Iterator[str]:
    """Yield the rows of a task."""
    yield f"| region | calibrator | {' | '.join(METRICS.values())} | Dice | mask changed |"
    yield f"|---|---|{'---:|' * (len(METRICS) + 2)}"
    for region in regions:
        for name, repeats in found.items():
            cells = []
            for metric in [*METRICS, "dice"]:
                one = estimate(columns(repeats, f"{metric} ({region})"), draws, LEVEL)
                cells.append(f"{one.value:.4f} [{one.low:.4f}, {one.high:.4f}]")
            flips = np.concatenate(columns(repeats, f"flip_rate ({region})"))
            yield f"| {region} | {name} | {' | '.join(cells)} | {share(float(flips.mean()))} |"


def compared(found: dict[str, list[Measured]], regions: list[str], draws: Draws) -> Iterator[str]:
    """Yield paired differences."""
    yield f"| region | `{OWN}` against | {' | '.join(METRICS.values())} |"
    yield f"|---|---|{'---:|' * len(METRICS)}"
    for region in regions:
        for peer in PEERS:
            cells = []
            for metric in METRICS:
                pair = [columns(found[name], f"{metric} ({region})") for name in (peer, OWN)]
                gap = difference(*pair, draws, "lower", LEVEL)
                text = f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
                cells.append(f"**{text}**" if gap.low * gap.high > 0 else text)
            yield f"| {region} | {peer} | {' | '.join(cells)} |"


def together(found: dict[str, list[Measured]]) -> Iterator[str]:
    """Yield what regions say together."""
    yield "| calibrator | label map changed | nesting violations | of them new |"
    yield "|---|---:|---:|---:|"
    for name, repeats in found.items():
        changed = float(np.concatenate(columns(repeats, "label_map_flips")).mean())
        turned, new = (sum(getattr(one, what) for one in repeats) for what in ("turned", "new"))
        yield f"| {name} | {share(changed)} | {turned:,} | {new:,} |"


def share(value: float) -> str:
    """Return a share; none at all is said so."""
    return "none" if value == 0 else f"{100 * value:.3f} %"


def section(folder: Path, task: str, repeats: int, voxels: int, first: int) -> Iterator[str]:
    """Yield the section of a task."""
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
    draws = Draws([test for _, test in sizes], 2000, 0)
    names = list(cases.regions.names)
    labels = "; ".join(f"{name} = {'+'.join(map(str, own))}" for name, own in REGIONS[task].items())
    groups, noun = len(set(cases.groups.values())), "division" if repeats == 1 else "divisions"
    yield f"## {WORDS[task]}\n"
    yield f"{len(cases)} cases of {groups} groups; {repeats} {noun} into {sizes[0][0]} cases to fit on and"
    yield f"{sizes[0][1]} to test on, about. Labels: {labels}.\n"
    yield from table(found, names, draws)
    yield f"\nPaired differences of `{OWN}` (below zero it is better; **bold** where the interval excludes zero):\n"
    yield from compared(found, names, draws)
    yield "\nTogether, over all test cases and divisions:\n"
    yield from together(found)
    yield ""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="seed of the first division")
    parser.add_argument("--voxels", type=int, default=2000, help="of each case, in a fit")
    parser.add_argument("--tasks", nargs="+", default=list(REGIONS))
    chosen = parser.parse_args()
    lines = [
        "# Region models: measured\n",
        "Written by `benchmarks/regions/page.py` from what `benchmarks/regions/train.py` predicted: two small",
        "networks with one sigmoid per region, trained for a minute each on binary cross-entropy plus soft Dice,",
        "and the sums of classes of a softmax ensemble. Intervals are 95 %, over test cases and divisions.",
        "`platt` is fitted without a penalty; `platt` and `isotonic` may move masks, the others keep them. What",
        "this shows is in [regions.md](regions.md).\n",
    ]
    for task in chosen.tasks:
        lines += section(chosen.folder, task, chosen.repeats, chosen.voxels, chosen.first)
    chosen.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
