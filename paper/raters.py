r"""Simulated raters on the cardiac ensemble: probabilities against the share of raters, at random and across sites.

    python -m paper.raters ROOT OUT [--divisions 20] [--cases 30] [--table docs/data/raters.csv] [--cost]

The raters are simulated from the one label map that each case has. Rater r moves the border of every structure by
:math:`b_r + a\,g_{rc}(x)` pixels of its slice: a bias of their own, the same in all cases, and a smooth random field.
So they say what several raters change in numbers, and nothing about how experts differ.

Divisions are random (two fifths of the patients are tested), and by site: fitted to the patients of one disease or of
two, tested on all others. OUT keeps the raters' label maps and ``numbers.jsonl``, one line a division; a file that has
lines already is continued. The table has the mean over divisions of each number and paired differences, with intervals
over patients and divisions (:mod:`segcal.summary`). With --cost it is instead measured what ten raters take beside one,
in processes of their own.

Of volumes there is also how far the expected one is above the mean of the raters, how much of it lies more than ten
pixels from what any rater marked, and how far it is from the volume of the one real label map.
"""

import argparse
import csv
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

import segcal
from paper.real_ensembles import open_ensemble
from paper.transfer import disease
from segcal.calibrators.conic import USUAL
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.slabs import calibrated_scores
from segcal.fitting.choice import candidates
from segcal.fitting.comparison import compare
from segcal.fitting.division import divide
from segcal.fitting.fit import fit_to
from segcal.fitting.request import FitData
from segcal.fitting.sample import SampledVoxels
from segcal.metrics import find_metrics, rater_metrics
from segcal.names import class_titles
from segcal.resample import Draws
from segcal.summary import difference, estimate

RATERS = 10
# Pixels: the spread of biases between raters, the size of a rater's own error, and how far it is alike.
BIAS, ERROR, LENGTH = 0.6, 1.0, 8.0
TEST_SHARE, FAR, TRUSTED = 0.4, 10, 3
METRICS = ("nll", "brier", "ece", "ba_ece", "cece", "dice", "accuracy", "flip_rate")
SHOWN = (
    "nll", "kl_to_share", "brier", "brier_to_share", "ece", "ba_ece", "dice", "dice (majority)", "volume_crps",
    "volume_bias", "volume_far", "volume_error_real", "flip_rate", "rater_entropy", "rater_impurity", "rater_dice",
    "rater_agreement",
)  # fmt: skip
RAW, MAJORITY, SHARES, DEFAULT = "raw", "ts (majority)", "ts (shares)", "default (shares)"
# Of trust, and not of a calibrator: the share of raters' volumes in its 90 % intervals, and its own estimate of volume.
TRUST = "segcal trust after ts (shares)"
Numbers = dict[str, dict[str, float]]  # of one case, by row and metric


class Division(NamedTuple):
    """The cases of a fit and of its test."""

    kind: str
    name: str
    cal: Sequence[str]
    test: Sequence[str]


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


class Study:
    """The cases in memory, with the labels of all raters and with those of the majority, and their drawn voxels."""

    def __init__(self, cases: Any, folders: Sequence[Path], voxels: int, every: int) -> None:
        logits, maps, spacing = [], [], []
        self.real: dict[str, NDArray[np.float64]] = {}
        for case in cases:
            logits.append(case.logits[:, ::every].float())
            maps.append(np.stack([np.load(folder / f"{case.id}.npy")[::every] for folder in folders]))
            spacing.append(None if case.spacing is None else (every * case.spacing[0], *case.spacing[1:]))
            labels = case.labels[::every].numpy().ravel()
            self.real[case.id] = np.bincount(labels, minlength=cases.num_classes).astype(float)
        more = {"ids": list(cases.ids), "groups": cases.groups, "pooling": cases.pooling, "spacing": spacing}
        self.cases = segcal.ArrayCases(logits, maps, raters="axis", **more)
        majority = segcal.ArrayCases(logits, [case.labels for case in self.cases], **more)
        self.drawn = {
            own: (each, SampledVoxels(each, voxels, 0, lambda: None, contexts=USUAL))
            for own, each in (("shares", self.cases), ("majority", majority))
        }
        self.metrics = rater_metrics(find_metrics(METRICS), self.cases.raters)
        self.raw: dict[str, dict[str, float]] = {}

    def data(self, ids: Sequence[str], labels: str = "shares") -> FitData:
        """Return the voxels of some cases, for a fit."""
        cases, drawn = self.drawn[labels]
        return FitData(cases.subset(ids), None, drawn.subset(ids), None)

    def divisions(self, count: int) -> Iterator[Division]:
        """Yield the divisions by site, and the random ones."""
        sites = disease(self.cases)
        for number in (1, 2):
            for chosen in combinations(sorted(set(sites.values())), number):
                cal, test = ([i for i in self.cases.ids if (sites[i] in chosen) == own] for own in (True, False))
                yield Division("sites", "+".join(chosen), cal, test)
        for seed in range(count):
            split = divide(self.cases, 0.0, TEST_SHARE, seed)
            yield Division("random", f"seed {seed}", split.cal.ids, split.test.ids)

    def measure(self, division: Division) -> dict[str, Numbers]:
        """Return the numbers of every test case with each way to calibrate."""
        data, config = self.data(division.cal), segcal.FitConfig()
        names = candidates(self.cases.num_classes)
        fits = {
            MAJORITY: fit_to("ts", self.data(division.cal, "majority"), config),
            SHARES: fit_to("ts", data, config),
            "isotonic (shares)": fit_to("isotonic", data, config),
            "conic (shares)": fit_to("conic", data, config),
            DEFAULT: compare(names, {self.cases.pooling: data}, config).fitted,
        }
        counter, test = Counter(self.metrics), self.cases.subset(division.test)
        found: dict[str, Numbers] = {}
        for case in test:
            far, known = far_from_all(case), {RAW: self.raw.get(case.id)}
            before, after = counter.count_each(case, {name: each.calibrator for name, each in fits.items()})
            for name, counted in {RAW: before, **after}.items():
                if known.get(name) is None:
                    scores = case.logits if name == RAW else calibrated_scores(fits[name].calibrator, case)
                    numbers = {key: metric(counted.tables) for key, metric in self.metrics.items()}
                    numbers |= volumes(counted.tables.raters, scores, far, self.real[case.id])
                    known[name] = {key: numbers[key] for key in SHOWN if numbers.get(key) is not None}
            self.raw[case.id], found[case.id] = known[RAW], known
        if division.name in (f"seed {seed}" for seed in range(TRUSTED)):  # one site has too few patients for 90 %
            for case_id, numbers in judged(
                segcal.learn_trust(fits[SHARES], self.cases.subset(division.cal)), test
            ).items():
                found[case_id][TRUST] = numbers
        return found


def far_from_all(case: Any) -> NDArray[np.bool_]:
    """Return the voxels that lie more than `FAR` pixels of their slice from what any rater marked as a structure."""
    marked = (case.votes.count[:, 1:].sum(1) > 0)[case.votes.code.numpy()]
    return np.stack([scipy.ndimage.distance_transform_edt(~one) > FAR if one.any() else ~one for one in marked])


def volumes(table: Any, scores: torch.Tensor, far: NDArray[np.bool_], real: NDArray[np.float64]) -> dict[str, float]:
    """Return how far the expected volumes are off, as means over structures."""
    mean = table.volumes.mean(0)
    there = np.flatnonzero(mean[1:] > 0) + 1
    beyond = torch.softmax(scores[:, torch.from_numpy(far)].double(), 0).sum(1).numpy()
    own, wanted = table.expected, real[there]
    return {
        "volume_bias": float(((own - mean) / np.where(mean > 0, mean, 1))[there].mean()),
        "volume_far": float((beyond[there] / mean[there]).mean()),
        "volume_error_real": float((np.abs(own[there] - wanted) / np.maximum(wanted, 1)).mean()),
    }


def judged(fitted: Any, test: Any) -> Numbers:
    """Return how `segcal trust` does on volumes: the raters in its 90 % intervals, the CRPS of its estimate."""
    result = segcal.trust(fitted, test, level=0.9)
    names = {title: number for number, title in enumerate(class_titles(test.class_names, test.num_classes))}
    found: dict[str, list[tuple[float, float]]] = {}
    for case in test:
        marks, often = case.votes.marks, case.votes.patterns()
        unit = np.prod(case.spacing) / 1000 if case.spacing is not None else 1.0
        for row in (row for row in result.rows if row["case"] == case.id):
            own = np.array([often[column == names[row["structure"]]].sum() * unit for column in marks.T])
            inside = np.mean((row["volume_low"] <= own) & (own <= row["volume_high"]))
            off = np.abs(own - row["volume"]).mean() - np.abs(own[:, None] - own[None]).mean() / 2
            found.setdefault(case.id, []).append((float(inside), float(off / own.mean()) if own.any() else np.nan))
    means = {case_id: np.nanmean(np.array(rows), 0) for case_id, rows in found.items()}
    return {case_id: {"coverage": float(one), "volume_crps": float(crps)} for case_id, (one, crps) in means.items()}


def write(path: Path, lines: Sequence[dict[str, Any]], groups: Mapping[str, str]) -> None:
    """Write the means over divisions and the paired differences, each with its interval."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["table", "row", "column", "value"])
        for kind in dict.fromkeys(line["kind"] for line in lines):
            cases = [dict(sorted(line["cases"].items())) for line in lines if line["kind"] == kind]
            draws = Draws([[groups[case_id] for case_id in each] for each in cases])
            title = f"{len(cases)} divisions, {kind}"
            columns: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
            for name, key in ((name, key) for name, own in next(iter(cases[0].values())).items() for key in own):
                found = [np.array([case.get(name, {}).get(key, np.nan) for case in each.values()]) for each in cases]
                columns[name, key] = found
                bounds = (-np.inf if key == "volume_bias" else 0.0, 1.0 if key == "coverage" else np.inf)
                rows.writerow([title, name, key, estimate(found, draws, bounds=bounds).text(".5f")])
            for base in (RAW, MAJORITY, DEFAULT):
                for (name, key), found in columns.items():
                    if name not in (base, RAW) and (base, key) in columns and not key.startswith("rater_"):
                        own = columns[base, key]
                        gaps = [np.nanmean(b - a) for a, b in zip(own, found, strict=True) if not np.isnan(b - a).all()]
                        value = difference(own, found, draws).text("+.5f")
                        value += f", lower in {sum(gap < 0 for gap in gaps)} of {len(gaps)}"
                        rows.writerow([f"{title}: less {base}", name, key, value])


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
    parser.add_argument("--divisions", type=int, default=20, metavar="N", help="random ones")
    parser.add_argument("--cases", type=int, default=30, metavar="N")
    parser.add_argument("--voxels", type=int, default=500, metavar="N", help="of each case, to fit to")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="only each n-th slice of a volume")
    parser.add_argument("--table", type=Path, metavar="CSV", help="default: OUT/raters.csv")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    cases, folders = prepare(given.root, given.out, given.cases)
    if given.cost:
        cost(given.root, given.out, given.cases)
        return
    study, kept = Study(cases, folders, given.voxels, given.every), given.out / "numbers.jsonl"
    lines = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    known = {(line["kind"], line["name"]) for line in lines}
    for division in study.divisions(given.divisions):
        if division[:2] not in known:
            lines.append({"kind": division.kind, "name": division.name, "cases": study.measure(division)})
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(lines[-1]) + "\n")
            print(f"{division.kind}, {division.name}", flush=True)
    write(given.table or given.out / "raters.csv", lines, study.cases.groups)


if __name__ == "__main__":
    main()
