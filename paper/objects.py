"""Objects of real ensembles: how honest p(real) is, how well it ranks, and what lists hold what they promise.

    python -m paper.objects find DATA CACHE
    python -m paper.objects tables CACHE > tables.md

``find`` fits a temperature to a third of the groups of each task and keeps the objects of all other cases, found with
it, in an artefact (numbers of objects, no image content); tasks whose predictions are not there are left out. The
tumours are those of the demonstration, predicted here. ``tables`` divides these cases by whole groups into labelled
and new ones again and again; every number is of new ones.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

import segcal
from paper.object_scores import (
    average_precision,
    calibration_error,
    free_response,
    panoptic_quality,
    sensitivity_at,
)
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.cases.base import Cases
from segcal.demo.embedded import EmbeddedCases
from segcal.fitting.object_reference import OF_OBJECT, OF_STRUCTURE, ObjectReference
from segcal.fitting.reference import read_numbers
from segcal.trust.conformal import mean_over_draws, weights
from segcal.trust.object_model import StructureModel, features_of, structure_models

PROTOCOLS = Path(__file__).parent / "protocols"
# Structures whose objects are looked at, and the smallest component that is one.
TASKS = {
    "cardiac": (("right ventricle", "left ventricle"), 1),
    "roads": (("road",), 10),
    "camvid": (("car", "pedestrian", "sign"), 10),
    "tumour": (("necrosis", "swelling", "enhancing", "cavity"), 1),
}
MOST_FRAMES, POOLING = 100, "mean_logits"
# The first cases were looked at while the model was made.
TUMOURS = range(1000, 1090)
SHARE, LEVEL, FDRS = 0.6, 0.9, (0.1,)
SCORED = ("p(real)", "peak", "mean")


def open_cases(name: str, data: Path, cache: Path) -> Cases | None:
    """Return the cases of a task with mean logits; None where there are none."""
    if name == "tumour":
        return EmbeddedCases("tumour", TUMOURS, POOLING, cache=cache / "tumour-predictions")
    task = load_protocol(PROTOCOLS / f"{name}.toml").tasks[0]
    try:
        cases = open_task(task, POOLING, data).cases
    except segcal.SegcalError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    return cases.subset(cases.ids[:: max(1, -(-len(cases) // MOST_FRAMES))])


def find(data: Path, cache: Path) -> None:
    """Fit, find objects, keep them."""
    for name, (structures, smallest) in TASKS.items():
        if (cache / name).exists() or (cases := open_cases(name, data, cache)) is None:
            continue
        groups = sorted({cases.groups.get(each, each) for each in cases.ids})
        first = {groups[k] for k in np.random.default_rng(0).permutation(len(groups))[: len(groups) // 3]}
        learned = [each for each in cases.ids if cases.groups.get(each, each) in first]
        fitted = segcal.fit("ts", cases.subset(learned), progress=lambda text: None)
        others = cases.subset([each for each in cases.ids if each not in learned])
        found = segcal.learn_objects(fitted, others, structures=structures, smallest=smallest, held_out=True)
        segcal.save(found, cache / name)
        assert found.objects is not None
        print(name, len(learned), "cases fitted,", len(found.objects.cases), "looked at", file=sys.stderr)


class Task:
    """The objects of one structure of a task."""

    def __init__(self, reference: ObjectReference, place: int, title: str) -> None:
        own = reference.structures[place]
        self.title, self.groups = title, np.array([case.group for case in reference.cases], object)
        self.counts = np.array([read_numbers(c.structures, -1, len(OF_STRUCTURE))[place] for c in reference.cases])
        tables = [read_numbers(case.objects, -1, len(OF_OBJECT)) for case in reference.cases]
        tables = [rows[(rows[:, 0] == own) & ~np.isnan(rows[:, 7])] for rows in tables]
        cases = [
            msgspec.structs.replace(
                case,
                objects=" ".join(f"{value:.6g}" for value in rows.ravel()),
                structures=" ".join(f"{value:.6g}" for value in counts),
            )
            for case, rows, counts in zip(reference.cases, tables, self.counts, strict=True)
        ]
        self.reference = msgspec.structs.replace(reference, cases=tuple(cases), structures=(own,))
        self.rows, self.owners = np.concatenate(tables), np.repeat(np.arange(len(tables)), [len(t) for t in tables])

    def divisions(self, repeats: int) -> Iterator[tuple[ObjectReference, np.ndarray]]:
        """Yield labelled cases, and the places of new ones."""
        rng, names = np.random.default_rng(0), sorted(set(self.groups))
        for _ in range(repeats):
            first = set(rng.permutation(names)[: round(SHARE * len(names))])
            old = np.array([group in first for group in self.groups])
            cases = tuple(case for case, known in zip(self.reference.cases, old, strict=True) if known)
            yield msgspec.structs.replace(self.reference, cases=cases), np.flatnonzero(~old)


def scores_of(model: StructureModel, rows: np.ndarray, members: bool) -> dict[str, np.ndarray]:
    """Return the rival probabilities of objects."""
    assert model.chance is not None
    return dict(zip(SCORED, (model.chance(features_of(rows, members)), rows[:, 3], rows[:, 2]), strict=True))


def calibration(task: Task, repeats: int) -> dict[str, np.ndarray]:
    """Return by score, of each division: ECE, Brier, AP, sensitivity at 0.5, 1 and 2 false per case; and PQ."""
    found: dict[str, list[list[float]]] = {name: [] for name in (*SCORED, "pq")}
    for labelled, new in task.divisions(repeats):
        (model,), members = structure_models(labelled, LEVEL, FDRS[0])
        own = np.isin(task.owners, new)
        if model.chance is None or not own.any():
            continue
        rows, truths = task.rows[own], int(task.counts[new, 0].sum())
        real, matched = rows[:, 7], rows[:, 10]
        scored = scores_of(model, rows, members)
        for name, scores in scored.items():
            false, sensitivity, _ = free_response(scores, matched, real, truths, len(new))
            froc = sensitivity_at(false, sensitivity, (0.5, 1, 2))
            brier, ece = float(((scores - real) ** 2).mean()), calibration_error(scores, real)
            found[name].append([ece, brier, average_precision(scores, matched, real, truths), *froc])
        kept = scored["p(real)"] >= 0.5
        found["pq"].append([panoptic_quality(rows[:, 8], truths), panoptic_quality(rows[kept, 8], truths)])
    return {name: np.array(values) for name, values in found.items()}


def bh_lists(task: Task, labelled: set[int], scores: np.ndarray, new: np.ndarray, fdr: float) -> np.ndarray:
    """Return which new objects Benjamini and Hochberg list, case by case, by conformal p-values of false objects."""
    old = np.array([owner in labelled for owner in task.owners]) & (task.rows[:, 7] == 0)
    share = weights(task.groups[task.owners[old]].tolist()) if old.any() else np.zeros(0)
    draws = len(set(task.groups[task.owners[old]]))
    listed = np.zeros(len(task.rows), bool)
    for case in new:
        own = np.flatnonzero(task.owners == case)
        values = np.array([share[scores[old] >= scores[k]].sum() + 1 / (draws + 1) for k in own])
        order = np.argsort(values)
        passed = np.flatnonzero(values[order] <= fdr * np.arange(1, len(own) + 1) / max(1, len(own)))
        listed[own[order[: passed.max(initial=-1) + 1]]] = True
    return listed


def false_share(task: Task, listed: np.ndarray, new: np.ndarray) -> tuple[float, float]:
    """Return the mean false share of lists over groups with an object, and the share of real objects listed."""
    cases = [case for case in new if (task.owners == case).any()]
    losses = []
    for case in cases:
        own = (task.owners == case) & listed
        losses.append((task.rows[own, 7] == 0).mean() if own.any() else 0.0)
    inside = np.isin(task.owners, new) & (task.rows[:, 7] == 1)
    power = float(listed[inside].mean()) if inside.any() else math.nan
    return (float(mean_over_draws(losses, task.groups[cases].tolist())) if cases else math.nan), power


def lists(task: Task, repeats: int) -> dict[tuple[str, float], np.ndarray]:
    """Return by rule and bound, of each division: the mean false share of lists, and the share of real ones listed."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for labelled, new in task.divisions(repeats):
        old = {k for k in range(len(task.groups)) if k not in set(new.tolist())}
        for fdr in FDRS:
            plain = np.zeros(0)
            for name, proved in (("segcal", False), ("segcal, proved", True)):
                (model,), members = structure_models(labelled, LEVEL, fdr, proved)
                least = math.inf if model.least is None or model.chance is None else model.least
                scores = (
                    np.zeros(len(task.rows))
                    if model.chance is None
                    else scores_of(model, task.rows, members)["p(real)"]
                )
                plain = scores if not proved else plain
                found.setdefault((name, fdr), []).append(false_share(task, scores >= least, new))
            found.setdefault(("p(real) alone", fdr), []).append(false_share(task, plain >= 1 - fdr, new))
            found.setdefault(("BH", fdr), []).append(false_share(task, bh_lists(task, old, plain, new, fdr), new))
    return {name: np.array(values) for name, values in found.items()}


def intervals(task: Task, repeats: int) -> np.ndarray:
    """Return of each division: coverage of sizes, error of the number of missed ones, coverage of their most."""
    found = []
    for labelled, new in task.divisions(repeats):
        (model,), _ = structure_models(labelled, LEVEL, FDRS[0])
        hits = np.isin(task.owners, new) & (task.rows[:, 7] == 1)
        rows, names = task.rows[hits], task.groups[task.owners[hits]].tolist()
        inside = np.abs(rows[:, 9] - rows[:, 1]) <= model.spread * (1 + rows[:, 1] * (1 - rows[:, 2]))
        groups, missed = task.groups[new].tolist(), task.counts[new, 1]
        error = float(mean_over_draws(np.abs(missed - model.missed), groups))
        covered = float(mean_over_draws(inside, names)) if len(names) else math.nan
        found.append([covered, error, float(mean_over_draws(missed <= model.missed_most, groups))])
    return np.array(found)


def cell(values: np.ndarray, digits: int = 3) -> str:
    """Return the mean over divisions, and where 95 % of them lie."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return "–"
    low, high = np.percentile(kept, [2.5, 97.5])
    return f"{kept.mean():.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(headings: list[str], rows: list[list[str]]) -> None:
    """Print a table of Markdown."""
    for line in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(line)} |")
    print()


def tables(cache: Path, repeats: int, few: int, workers: int) -> None:
    """Print all tables."""
    tasks = []
    for name in TASKS:
        if not (cache / name).exists():
            continue
        fitted = segcal.load(cache / name)
        assert fitted.objects is not None
        titles = fitted.class_names or [f"class {k}" for k in range(fitted.calibrator.num_classes)]
        tasks += [Task(fitted.objects, k, f"{name}: {titles[own]}") for k, own in enumerate(fitted.objects.structures)]
    tasks = [task for task in tasks if len(task.rows)]
    table(
        ["Structure", "Cases (groups)", "Objects", "Real", "Objects of labels", "Missed"],
        [[t.title, f"{len(t.groups)} ({len(set(t.groups))})", str(len(t.rows)), str(int(t.rows[:, 7].sum())),
          str(int(t.counts[:, 0].sum())), str(int(t.counts[:, 1].sum()))] for t in tasks],
    )  # fmt: skip
    with ProcessPoolExecutor(workers) as pool:  # one structure per process; divisions are the same for all
        titles = [task.title for task in tasks]
        pending = [pool.map(partial(lists, repeats=repeats), tasks)]
        pending += [pool.map(partial(measure, repeats=few), tasks) for measure in (calibration, intervals)]
        listed, honest, sizes = (dict(zip(titles, found, strict=True)) for found in pending)
    rows = [
        [title, name, *(cell(found[name][:, k]) for k in range(6))]
        for title, found in honest.items()
        for name in SCORED
    ]
    table(["Structure", "Score", "ECE", "Brier", "AP", "Sensitivity at 0.5", "at 1", "at 2 false per case"], rows)
    table(
        ["Structure", "PQ of all objects", "PQ of those with p(real) of at least 0.5"],
        [[title, *(cell(found["pq"][:, k]) for k in range(2))] for title, found in honest.items()],
    )
    rows = []
    for title, found in listed.items():
        for (name, fdr), values in found.items():
            error = 2 * np.nanstd(values[:, 0]) / math.sqrt(len(values))
            rows.append(
                [title, name, f"{fdr:g}", f"{np.nanmean(values[:, 0]):.3f} ± {error:.3f}", cell(values[:, 1], 2)]
            )
    table(["Structure", "List", "Bound", "False share ± 2 errors", "Real objects listed"], rows)
    rows = [[title, *(cell(column) for column in found.T)] for title, found in sizes.items()]
    table(
        [
            "Structure",
            "Sizes in their interval (0.9)",
            "Error of missed: mean",
            "Missed at most (0.9)",
        ],
        rows,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["find", "tables"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=1000, help="divisions for lists")
    parser.add_argument("--few", type=int, default=200, help="divisions for everything else")
    parser.add_argument("--workers", type=int, default=2, help="processes for tables")
    given = parser.parse_args()
    if given.what == "find":
        find(*given.folders)
    else:
        tables(given.folders[0], given.repeats, given.few, given.workers)
