r"""Simulated raters on the cardiac ensemble: probabilities against the share of raters, over divisions of patients.

    python -m paper.raters ROOT OUT [--divisions 20] [--cases 50] [--cost]

The raters are simulated from the one label map that each case has. Rater r moves the border of every structure by
:math:`b_r + a\,g_{rc}(x)` pixels of its slice: a bias of their own, the same in all cases, and a smooth random field.
So they say what several raters change in numbers, and nothing about how experts differ. OUT keeps their label maps and
``raters.csv``, the mean over divisions of each number with its standard deviation; with --cost it is instead measured
what ten raters take beside one, in processes of their own.
"""

import argparse
import csv
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

import segcal
from paper.real_ensembles import open_ensemble
from segcal.evaluation.case_counter import Counter, Stage
from segcal.fitting.division import divide
from segcal.metrics import find_metrics, rater_metrics
from segcal.names import class_titles

RATERS = 10
# Pixels: the spread of biases between raters, the size of a rater's own error, and how far it is alike.
BIAS, ERROR, LENGTH = 0.6, 1.0, 8.0
TEST_SHARE, VOXELS = 0.4, 2000
METRICS = ("nll", "brier", "ece", "ba_ece", "cece", "dice", "accuracy", "flip_rate")
SHOWN = (
    "nll", "kl_to_share", "brier", "brier_to_share", "ece", "ba_ece", "dice", "dice (majority)", "volume_crps",
    "flip_rate", "rater_entropy", "rater_impurity", "rater_dice", "rater_agreement",
)  # fmt: skip


def simulate(labels: NDArray[np.integer], classes: int, name: str, rater: int) -> NDArray[np.uint8]:
    """Return the label map ``(slices, height, width)`` of a simulated rater; the same for the same name and number."""
    bias = np.random.default_rng([1, rater]).normal(0, BIAS, classes)
    rng = np.random.default_rng([zlib.crc32(name.encode()), rater])
    depth = np.full((classes, *labels.shape), -np.inf)
    for number in range(1, classes):
        for place, plane in enumerate(labels == number):
            if not plane.any():
                continue
            inside, outside = (scipy.ndimage.distance_transform_edt(each) for each in (plane, ~plane))
            field = scipy.ndimage.gaussian_filter(rng.normal(size=plane.shape), LENGTH)
            depth[number, place] = inside - outside + bias[number] + ERROR * field / field.std()
    depth[0] = 0
    return depth.argmax(0).astype(np.uint8)


def prepare(root: Path, out: Path, count: int) -> tuple[Any, list[Path]]:
    """Return the cases, and the folders of the raters' label maps, which are written if they are not there."""
    cases = open_ensemble(root, "cardiac", count, "mean_logits")
    folders = [out / f"rater_{number}" for number in range(RATERS)]
    for case_id in cases.ids:
        if all((folder / f"{case_id}.npy").exists() for folder in folders):
            continue
        labels = cases.checked(case_id).labels.numpy()
        for number, folder in enumerate(folders):
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{case_id}.npy", simulate(labels, cases.num_classes, case_id, number))
    return cases, folders


def in_memory(cases: Any, folders: Sequence[Path]) -> tuple[Any, Any]:
    """Return the cases with the labels of all raters, and with those of the majority."""
    logits, maps, spacing = [], [], []
    for case in cases:
        logits.append(case.logits.float())
        maps.append(np.stack([np.load(folder / f"{case.id}.npy") for folder in folders]))
        spacing.append(case.spacing)
    more = {"ids": list(cases.ids), "groups": cases.groups, "pooling": cases.pooling, "spacing": spacing}
    several = segcal.ArrayCases(logits, maps, raters="axis", **more)
    majority = [case.labels for case in several]
    return several, segcal.ArrayCases(logits, majority, **more)


def divided(several: Any, majority: Any, seed: int) -> dict[str, dict[str, float]]:
    """Return the numbers of every way to calibrate on the test cases of one division."""
    split, config = divide(several, 0.0, TEST_SHARE, seed), segcal.FitConfig(voxels=VOXELS, seed=seed)
    one = majority.subset(split.cal.ids)
    fits = {
        "ts (majority)": segcal.fit("ts", one, config=config),
        "ts (shares)": segcal.fit("ts", split.cal, config=config),
        "isotonic (shares)": segcal.fit("isotonic", split.cal, config=config),
        "conic (shares)": segcal.fit("conic", split.cal, config=config),
        "default (shares)": segcal.choose(split.cal, config=config),
    }
    own = rater_metrics(find_metrics(METRICS), several.raters)
    counter = Counter(own)
    stages = {name: Stage(own) for name in ("raw", *fits)}
    for case in split.test:
        before, after = counter.count_each(case, {name: found.calibrator for name, found in fits.items()})
        for name, counted in {"raw": before, **after}.items():
            stages[name].add(case.id, counted.tables)
    found = {name: {key: float(np.nanmean(stage.column(key))) for key in SHOWN} for name, stage in stages.items()}
    learned = segcal.learn_trust(fits["ts (shares)"], split.cal)
    found["ts (shares)"]["coverage"] = coverage(learned, split.test)
    return found


def coverage(fitted: Any, test: Any) -> float:
    """Return the share of the raters' volumes that lie in the 90 % intervals of volumes."""
    inside = []
    result = segcal.trust(fitted, test, level=0.9)
    volumes = {}
    for case in test:
        marks, often = case.votes.marks, case.votes.patterns()
        unit = np.prod(case.spacing) / 1000 if case.spacing is not None else 1.0
        volumes[case.id] = [[often[own == c].sum() * unit for own in marks.T] for c in range(test.num_classes)]
    names = {title: number for number, title in enumerate(class_titles(test.class_names, test.num_classes))}
    for row in result.rows:
        own = np.array(volumes[row["case"]][names[row["structure"]]])
        inside.append(np.mean((row["volume_low"] <= own) & (own <= row["volume_high"])))
    return float(np.mean(inside))


def cost(root: Path, out: Path, count: int) -> None:
    """Print the CPU seconds and the largest memory of a fit and of an evaluation, with one rater and with ten."""
    members, folders = sorted((root / "predictions" / "cardiac").glob("member_*")), sorted(out.glob("rater_*"))
    ids = sorted(path.stem for path in folders[0].glob("*.npy"))[:count]
    print("| raters | CPU seconds | largest memory, MiB |\n| ---: | ---: | ---: |")
    for number in (1, RATERS):
        code = (
            "import segcal, resource, time\n"
            f"cases = segcal.open_cases({list(map(str, members))!r}, {list(map(str, folders[:number]))!r}, "
            f"kind='logits', pooling='mean_logits', strict=False).subset({ids!r})\n"
            "first = cases.subset(cases.ids[:2])\n"
            "segcal.evaluate(first, segcal.fit('ts', first), metrics=('nll', 'ba_ece', 'cece', 'dice'))\n"
            "start = time.process_time()\n"
            "fitted = segcal.fit('ts', cases)\n"
            "segcal.evaluate(cases, fitted, metrics=('nll', 'brier', 'ece', 'ba_ece', 'cece', 'dice'))\n"
            "print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, memory = map(float, done.stdout.split())
        print(f"| {number} | {seconds:.1f} | {memory:.0f} |", flush=True)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--divisions", type=int, default=20, metavar="N")
    parser.add_argument("--cases", type=int, default=50, metavar="N")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    cases, folders = prepare(given.root, given.out, given.cases)
    if given.cost:
        cost(given.root, given.out, given.cases)
        return
    several, majority = in_memory(cases, folders)
    found = []
    for seed in range(given.divisions):
        found.append(divided(several, majority, seed))
        print(f"division {seed + 1} of {given.divisions}", flush=True)
        write(given.out / "raters.csv", found)


def write(path: Path, found: Sequence[dict[str, dict[str, float]]]) -> None:
    """Write the mean and the standard deviation over divisions of each number."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["table", "row", "column", "value"])
        for name, numbers in found[0].items():
            for key in numbers:
                values = np.array([each[name][key] for each in found])
                if np.isfinite(values).all():
                    rows.writerow([f"mean of {len(found)} divisions", name, key, f"{values.mean():.5f}"])
                    rows.writerow([f"standard deviation of {len(found)} divisions", name, key, f"{values.std():.5f}"])


if __name__ == "__main__":
    main()
