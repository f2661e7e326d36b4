"""Rules of ``segcal decide`` on real ensembles: their worth, for docs/decide.md.

    python -m paper.decide cardiac --root DATA -o sums      # reads predictions; also roads, camvid
    python -m paper.decide --page sums > section.md         # reads nothing but the sums

Of each task ``ts`` and ``conic`` are fitted to some cases (whole groups, mean logits); all others are decided on, with
raw probabilities too, by argmax, by ``dice`` and ``volume``, and by RankSEG (PyPI ``rankseg``, its default solver RMA,
one class a voxel), if that is installed. What is kept of a case and structure is sums: voxels of mask, truth and both,
and histograms over thresholds. Masks with bounded errors are counted on 1,000 divisions of the cases, whole groups,
from these alone. Dice is over voxels that have a label, and over cases in which the structure is in the labels or in a
mask that is compared.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import segcal
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.cases.base import Case
from segcal.decisions import make_rule
from segcal.decisions.masks import Decider
from segcal.evaluation.slabs import as_seen, calibrated_scores
from segcal.fitting.certificate import Fitted
from segcal.trust.conformal import first_controlled, mean_over_draws, quantile
from segcal.types import IGNORED

Floats = NDArray[np.float64]
HERE = Path(__file__).parent
TASKS = {"cardiac": 24, "roads": 20, "camvid": 20}  # cases for the fits
MOST = 50  # frames of the video task that are decided on
STAGES = ("identity", "ts", "conic")
RULES = ("argmax", "dice", "volume")
METHODS = (*RULES, "RankSEG")
REPEATS, SHARE = 1000, 0.6
# The thresholds of the reference, and nine between two of them.
FINE = 10
GRID: Floats = 1 / (1 + np.exp(-np.linspace(-math.log(9999), math.log(9999), 64 * FINE + 1)))


def rankseg_of(probs: Tensor) -> Tensor | None:
    """Return the label map of RankSEG, if it is installed."""
    try:
        from rankseg import RankSEG
    except ImportError:
        return None
    found: Tensor = RankSEG(metric="dice", output_mode="multiclass", solver="RMA").predict(probs[None])[0]
    return found


def counted(labels: Tensor, found: Tensor, structures: range) -> Floats:
    """Return voxels of mask, truth and both, ``(3, structures)``."""
    known = labels != IGNORED
    rows = [(found == c) & known for c in structures], [labels == c for c in structures]
    both = [mask & truth for mask, truth in zip(*rows, strict=True)]
    return np.array([[float(each.sum()) for each in column] for column in (*rows, both)])


def histograms(labels: Tensor, probs: Tensor, structures: range) -> Floats:
    """Return voxels of each structure and all voxels, by how many thresholds they reach, ``(2, structures, bins)``."""
    edges, known = torch.from_numpy(GRID), labels != IGNORED
    found = np.zeros((2, len(structures), len(GRID) + 1))
    for place, c in enumerate(structures):
        reached = torch.bucketize(probs[c].double().contiguous(), edges, right=True)
        for row, where in enumerate((labels == c, known)):
            found[row, place] = torch.bincount(reached[where], minlength=len(GRID) + 1).numpy()
    return found


def measure(case: Case, fitted: dict[str, Fitted], background: bool) -> tuple[Floats, Floats]:
    """Return counts ``(stages, methods, 3, structures)`` and histograms ``(stages, 2, structures, bins)`` of a case."""
    counts, tables = [], []
    assert case.labels is not None
    for one in fitted.values():
        probs = torch.softmax(calibrated_scores(one.calibrator, case), 0)
        structures = range(1 if background else 0, len(probs))
        maps = [torch.from_numpy(Decider(one, make_rule(rule), background)(case).masks).long() for rule in RULES]
        other = rankseg_of(probs.float())
        maps.append(torch.full_like(maps[0], -1) if other is None else other)
        counts.append([counted(case.labels, each, structures) for each in maps])
        tables.append(histograms(case.labels, probs, structures))
    return np.array(counts), np.array(tables)


def collect(name: str, root: Path, folder: Path) -> None:
    """Decide on all cases of a task, and write the sums."""
    task = load_protocol(HERE / "protocols" / f"{name}.toml").tasks[0]
    opened = open_task(task, "mean_logits", root)
    cases = opened.cases
    split = cases.split(cal=TASKS[name], seed=0)
    background = task.background is not False
    fitted = {stage: segcal.fit(stage, split.cal) for stage in STAGES}
    test = split.test
    step = max(1, math.ceil(len(test) / MOST)) if name == "camvid" else 1
    test = as_seen(test.subset(test.ids[::step]), fitted["conic"].calibrator)
    found = []
    for number, case_id in enumerate(test.ids):
        found.append(measure(test.checked(case_id), fitted, background))
        print(f"\r{name}: {number + 1} of {len(test)}", end="", flush=True)
    groups = np.array([cases.groups.get(each, each) for each in test.ids])
    names = np.array((cases.class_names or [f"class {c}" for c in range(cases.num_classes)])[1 if background else 0 :])
    folder.mkdir(parents=True, exist_ok=True)
    counts, tables = (np.array(each) for each in zip(*found, strict=True))
    np.savez_compressed(folder / f"{name}.npz", counts=counts, tables=tables, groups=groups, names=names)
    print()


class Sums:
    """The sums of one task."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self.name, self.groups, self.names = path.stem, data["groups"], [str(name) for name in data["names"]]
        self.mask, self.truth, self.both = np.moveaxis(data["counts"], 3, 0)  # (cases, stages, methods, structures)
        self.tables = data["tables"]

    def dice(self, stage: int, method: int, other: int, structure: int) -> tuple[Floats, Floats, NDArray[np.str_]]:
        """Return the Dice of a method and of argmax on raw scores, and the groups of the cases that count."""
        at = (slice(None), slice(None), slice(None), structure)
        mask, truth, both = (each[at] for each in (self.mask, self.truth, self.both))
        empty = (mask + truth) == 0
        every = (2 * both + empty) / (mask + truth + empty)
        own = (truth[:, 0, 0] > 0) | (mask[:, stage, method] > 0) | (mask[:, 0, other] > 0)
        return every[own, stage, method], every[own, 0, other], self.groups[own]


def interval(values: Floats, groups: NDArray[np.str_], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a mean over cases, drawing whole groups again and again."""
    names, places = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(places, values), np.bincount(places)
    drawn = np.random.default_rng(seed).integers(0, len(names), (4000, len(names)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


def dice_tables(tasks: list[Sums]) -> None:
    """Print Dice by method and stage beside argmax: per task, and per structure."""
    for whole in (True, False):
        head = ["task", *([] if whole else ["structure"]), "probabilities", "argmax"]
        row(*head, *(f"`{name}`" if name in RULES else name for name in METHODS[1:]))
        row(*["---"] * (len(head) + len(METHODS) - 1))
        for task in tasks:
            parts = [range(len(task.names))] if whole else [range(c, c + 1) for c in range(len(task.names))]
            for part in parts:
                for stage, title in enumerate(("raw", "`ts`", "`conic`")):
                    cells = [_gain(task, part, stage, method) for method in range(1, len(METHODS))]
                    base = np.mean([task.dice(stage, 0, 0, c)[1].mean() for c in part])
                    row(task.name, *([] if whole else [task.names[part[0]]]), title, f"{base:.4f}", *cells)
        print()


def _gain(task: Sums, part: range, stage: int, method: int) -> str:
    """Return the mean change of Dice over cases and structures in hundredths, its interval, and the cases that lose."""
    if task.mask[:, stage, method].sum() == 0:
        return "–"
    pairs = [task.dice(stage, method, 0, c) for c in part]
    change = np.concatenate([after - before for after, before, _ in pairs])
    low, high = interval(change, np.concatenate([groups for _, _, groups in pairs]))
    worse = 100 * np.mean(change < -1e-9)
    return f"{100 * change.mean():+.2f} [{100 * low:+.2f}, {100 * high:+.2f}], {worse:.0f} %"


def divisions(groups: NDArray[np.str_]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the places of labelled and new cases."""
    rng, names = np.random.default_rng(0), np.unique(groups)
    for _ in range(REPEATS):
        own = np.isin(groups, names[rng.permutation(len(names))[: round(SHARE * len(names))]])
        yield np.flatnonzero(own), np.flatnonzero(~own)


class Losses:
    """What masks at each threshold of the grid lose, by case: missed or wrong voxels, and their size."""

    def __init__(self, task: Sums, stage: int, structure: int, recall: bool) -> None:
        own, every = task.tables[:, stage, :, structure].swapaxes(0, 1)
        self.truth, self.above = own.sum(1), every.sum(1)[:, None] - np.cumsum(every, 1)[:, :-1]
        right = own.sum(1)[:, None] - np.cumsum(own, 1)[:, :-1]
        self.there = self.truth > 0
        self.errors = self.truth[:, None] - right if recall else self.above - right
        self.sizes = np.broadcast_to(self.truth[:, None], right.shape) if recall else self.above
        self.share = np.divide(self.errors, self.sizes, out=np.zeros_like(right), where=self.sizes > 0)
        if recall:  # from high thresholds, where all is missed, to low ones
            self.share, self.errors, self.sizes, self.above = (
                each[:, ::-1] for each in (self.share, self.errors, self.sizes, self.above)
            )
        self.bound = np.maximum.accumulate(self.share[:, ::-1], 1)[:, ::-1]  # of this and all later places

    def risk_control(self, known: NDArray[np.intp], groups: list[str], share: float, step: int) -> int | None:
        """Return the place of the grid by conformal risk control."""
        mean = mean_over_draws(self.bound[known, ::step], groups)
        place = first_controlled(mean, len(set(groups)), share)
        return None if place is None else place * step

    def pooled(self, known: NDArray[np.intp], share: float) -> int | None:
        """Return the first place whose share of errors among all voxels of all cases is low enough."""
        errors, sizes = self.errors[known].sum(0), self.sizes[known].sum(0)
        kept = np.flatnonzero((errors + 1) / (sizes + 1) <= share)
        return int(kept[0]) if len(kept) else None

    def on(self, new: NDArray[np.intp], groups: list[str], place: int) -> tuple[float, float]:
        """Return the mean share of errors of new cases, and the size of their masks as a multiple of the truth."""
        size = self.above[new, place].sum() / self.truth[new].sum()
        return float(mean_over_draws(self.share[new, place], groups)), float(size)

    def by_case(self, known: NDArray[np.intp], groups: list[str], share: float) -> int | None:
        """Return the place that nine of ten cases need at most, by split conformal prediction."""
        needed = [float(np.argmax(each <= share)) if (each <= share).any() else np.inf for each in self.bound[known]]
        place = quantile(needed, groups, 0.9)
        return None if np.isinf(place) else int(place)


WAYS = ("risk control", "on a grid ten times finer", "all voxels as one sample", "nine of ten cases")


def risks(tasks: list[Sums], recall: bool, share: float) -> None:
    """Print mean errors and sizes of masks over divisions; where no threshold is low enough all is given up."""
    row("task", "probabilities", *WAYS)
    row(*["---"] * (len(WAYS) + 2))
    for task in tasks:
        for stage, title in enumerate(("raw", "`ts`", "`conic`")):
            found: list[list[tuple[float, float]]] = [[] for _ in WAYS]
            for c in range(len(task.names)):
                losses = Losses(task, stage, c, recall)
                for known, new in divisions(task.groups):
                    known, new = (each[losses.there[each]] if recall else each for each in (known, new))
                    if not len(known) or not losses.there[new].any():
                        continue
                    groups, fresh = ([str(each) for each in task.groups[part]] for part in (known, new))
                    places = (
                        losses.risk_control(known, groups, share, FINE),
                        losses.risk_control(known, groups, share, 1),
                        losses.pooled(known, share),
                        losses.by_case(known, groups, share),
                    )
                    for own, place in zip(found, places, strict=True):
                        own.append((0.0, np.nan) if place is None else losses.on(new, fresh, place))
            row(task.name, title, *(_risk(each) for each in found))
    print()


def _risk(values: list[tuple[float, float]]) -> str:
    """Return the mean share of errors, the mean size where there is a mask, and how often there is none."""
    loss, size = (np.array(each) for each in zip(*values, strict=True))
    none = np.isnan(size).mean()
    sized = "–" if none == 1 else f"{np.nanmean(size):.2f}"
    return f"{loss.mean():.3f} ({sized})" + (f", none in {100 * none:.0f} %" if none else "")


def page(folder: Path) -> None:
    """Print the section."""
    tasks = [Sums(folder / f"{name}.npz") for name in TASKS if (folder / f"{name}.npz").exists()]
    for task in tasks:
        sizes = f"{len(task.groups)} cases in {len(set(task.groups))} groups"
        print(f"- {task.name}: {sizes}, {len(task.names)} structures; fits to {TASKS[task.name]} other cases")
    print("\n## dice\n")
    dice_tables(tasks)
    for recall, share in ((True, 0.05), (True, 0.1), (False, 0.1)):
        print(f"## {'missed' if recall else 'wrong'} at most {share:g}\n")
        risks(tasks, recall, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("--root", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--page", type=Path, metavar="SUMS")
    args = parser.parse_args()
    if args.page is not None:
        page(args.page)
    else:
        collect(args.task, args.root, args.output)


if __name__ == "__main__":
    main()
