"""Coverage, widths, detection and false alarms on real ensembles: ``python -m paper.trust SUMS > tables.md``.

SUMS is the folder of ``paper/trust_sums.py``. The cases of each task that the calibrator has not seen are divided
1,000 times, whole groups, into a reference (60 %) and new cases; what is promised is counted on the new ones. "Before"
is without calibration, "after" with the calibrator that ``segcal fit`` chose. Nothing here reads an image.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segcal.resample import percentile_interval
from segcal.studies.failure_detection import rankings, risk_area, risk_of
from segcal.trust.atypical import Compositions, atypical_p, column_p, rank_p, size_columns, statistics_of
from segcal.trust.biomarkers import biomarker_errors, link_cases, parse_biomarker, volumes_of
from segcal.trust.conformal import SLACK, first_controlled, mean_over_draws, quantile, weights
from segcal.trust.drift import weigh
from segcal.trust.estimates import SumTable, dice_errors, dice_scale, expected_dice, volume_scale
from segcal.trust.guarantees import MIDDLE
from segcal.trust.judge import Judge

Floats = NDArray[np.float64]
REPEATS, SHARE, LEVEL, STREAMS = 1000, 0.6, 0.9, 500
LEVELS = (0.8, LEVEL)
# Of clean draws that spoiled streams are compared with.
MOST_SHARE = 0.9
TASKS = {
    "cardiac": ("right ventricle", "myocardium", "left ventricle"),
    "roads": ("road",),
    "camvid": (
        "sky",
        "building",
        "pole",
        "road",
        "pavement",
        "tree",
        "sign",
        "fence",
        "car",
        "pedestrian",
        "bicyclist",
    ),
}
EF = "100 * ({left ventricle@01} - {left ventricle@02}) / {left ventricle@01}"


class Task:
    """The sums of one file, by stage, and how its cases are divided."""

    def __init__(self, path: Path, structures: Sequence[str]) -> None:
        self.name, self.titles = path.stem, structures
        self.data = np.load(path)
        self.tables = {stage: self._table(stage) for stage in ("before", "after")}
        self.groups = np.array(self.tables["after"].groups, dtype=object)
        self.classes = range(self.tables["after"].mask.shape[1])[-len(structures) :]

    def _table(self, stage: str) -> SumTable:
        columns = [self.data[f"{stage}/{field.name}"] for field in fields(SumTable)]
        return SumTable(tuple(map(str, columns[0])), tuple(map(str, columns[1])), *columns[2:])

    def divisions(self, seed: int = 0, repeats: int = REPEATS) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield the places of the reference and of the new cases."""
        rng, names = np.random.default_rng(seed), sorted(set(self.groups))
        for _ in range(repeats):
            drawn = rng.permutation(len(names))[: round(SHARE * len(names))]
            own = np.isin(self.groups.astype(str), [names[i] for i in drawn])
            yield np.flatnonzero(own), np.flatnonzero(~own)


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")


def head(*cells: str) -> None:
    row(*cells)
    row(*["---"] * len(cells))


def covered(
    task: Task, truth: Floats, value: Floats, scale: Floats, counted: NDArray[np.bool_], most: float
) -> list[float]:
    """Return the coverage of intervals over re-divisions at each level, and their mean width at the last."""
    hits: dict[float, list[float]] = {level: [] for level in LEVELS}
    widths = []
    for known, new in task.divisions():
        for number in task.classes:
            old, own = known[counted[known, number]], new[counted[new, number]]
            if not len(old) or not len(own):
                continue
            off = np.abs(truth - value)[old, number] / scale[old, number]
            for level in LEVELS:
                reach = min(quantile(off, list(task.groups[old]), level), 1e12) * scale[own, number]
                low, high = np.maximum(value[own, number] - reach, 0), np.minimum(value[own, number] + reach, most)
                hits[level].append(float(np.mean((low <= truth[own, number]) & (truth[own, number] <= high))))
            widths.append(np.mean(high - low) / (1 if most == 1 else truth[:, number].mean()))
    return [*(float(np.mean(each)) for each in hits.values()), float(np.mean(widths))]


def score(task: Task, truth: Floats, value: Floats, scale: Floats) -> float:
    """Return the mean CRPS of the distribution that labelled cases give a volume, as a share of the mean volume."""
    found = []
    for known, new in task.divisions(repeats=100):
        share = weights(list(task.groups[known]))
        share = share / share.sum()
        for c in task.classes:
            errors = (truth - value)[known, c] / scale[known, c]
            drawn = np.maximum(value[new, c][:, None] + scale[new, c][:, None] * errors, 0)
            far = (np.abs(drawn - truth[new, c][:, None]) * share).sum(1)
            spread = np.einsum("nij,i,j->n", np.abs(drawn[:, :, None] - drawn[:, None]), share, share)
            found.append((far - spread / 2).mean() / truth[:, c].mean())
    return float(np.mean(found))


def intervals(tasks: Sequence[Task]) -> None:
    """Print coverage and width of both intervals beside simpler ones, and CRPS of volumes."""
    head("task", "interval", *(f"coverage at {level:g}" for level in LEVELS), f"mean width at {LEVEL:g}", "CRPS")
    for task in tasks:
        for stage, table in task.tables.items():
            there = ~table.empty
            found = covered(task, table.dice, expected_dice(table), dice_scale(table), there, 1.0)
            row(task.name, f"Dice, {stage}", *found, "")
        middle = np.broadcast_to(np.nanmean(np.where(there, table.dice, np.nan), 0), there.shape)
        found = covered(task, table.dice, middle, np.ones_like(middle), there, 1.0)
        row(task.name, "Dice, mean of the structure", *found, "")
        ways = [(f"volume, {stage}", each.prob, volume_scale(each)) for stage, each in task.tables.items()]
        for name, value, scale in [*ways, ("volume, mask alone", table.mask, np.ones_like(table.mask))]:
            found = covered(task, table.truth, value, scale, np.ones_like(there), np.inf)
            row(task.name, name, *found, score(task, table.truth, value, scale))


def errors(tasks: Sequence[Task]) -> None:
    """Print how far the expected Dice and the volume are off, without any reference."""
    head(
        "task",
        "error of expected Dice: before",
        "after",
        "after, and members",
        "the same, corrected by other draws",
        "volume bias: mask",
        "before",
        "after",
    )
    for task in tasks:
        before, after = task.tables["before"], task.tables["after"]
        use = [(~after.empty)[:, number] for number in task.classes]

        def mean(value: Floats, truth: Floats, use: list[NDArray[np.bool_]] = use, task: Task = task) -> float:
            gaps = [np.abs(value - truth)[own, c].mean() for own, c in zip(use, task.classes, strict=True)]
            return float(np.mean(gaps))

        ways = (before.expected_dice, after.expected_dice, expected_dice(after), corrected_dice(task, after))
        dice = [mean(each, after.dice) for each in ways]
        sizes = (after.mask, before.prob, after.prob)
        bias = [np.mean([(s - after.truth)[:, c].sum() / after.truth[:, c].sum() for c in task.classes]) for s in sizes]
        row(task.name, *dice, *(f"{100 * each:+.1f} %" for each in bias))


def corrected_dice(task: Task, table: SumTable) -> Floats:
    """Return the expected Dice, each group corrected by the errors of all others."""
    value, scale = expected_dice(table), dice_scale(table)
    found = value.copy()
    for group in set(task.groups):
        own = np.flatnonzero(task.groups == group)
        others = table.rows(np.flatnonzero(task.groups != group))
        for c in task.classes:
            known = dice_errors(others, c)
            for i in own[~table.empty[own, c]] if known.draws else ():
                found[i, c] = known.corrected(value[i, c], scale[i, c], 0.0, 1.0)
    return found


def controlled(task: Task, stage: str, share: float) -> list[float]:
    """Return the mean losses and sizes that risk control leads to: outer mask, inner mask, label sets."""
    own, rank, every = (task.data[f"{stage}/{name}"] for name in ("by_prob", "by_rank", "all_by_prob"))
    truth, counted = own.sum(2), task.tables[stage].counted
    with np.errstate(invalid="ignore"):
        missed = np.cumsum(own, 2)[..., :-1] / truth[..., None]
        outranked = 1 - np.cumsum(rank, 2)[..., :-1] / truth[..., None]
    above, right = (each.sum(2)[..., None] - np.cumsum(each, 2)[..., :-1] for each in (every, own))
    wrong = np.divide(above - right, above, out=np.zeros_like(above), where=above > 0)
    most = np.maximum.accumulate(wrong[..., ::-1], 2)[..., ::-1]
    out: dict[str, list[float]] = {name: [] for name in ("missed", "outer", "wrong", "inner", "outranked")}
    for known, new in task.divisions():
        for c in task.classes:
            there, now = known[truth[known, c] > 0], new[truth[new, c] > 0]
            if len(there) and len(now):
                groups = list(task.groups[there])
                k = first_controlled(mean_over_draws(missed[there, c], groups)[MIDDLE::-1], len(set(groups)), share)
                if k is not None:
                    out["missed"].append(missed[now, c, MIDDLE - k].mean())
                    out["outer"].append(above[now, c, MIDDLE - k].sum() / truth[now, c].sum())
                q = first_controlled(mean_over_draws(outranked[there, c], groups), len(set(groups)), share)
                out["outranked"].append(0.0 if q is None else outranked[now, c, q].mean())
            groups = list(task.groups[known])
            t = first_controlled(mean_over_draws(most[known, c], groups)[MIDDLE:], len(set(groups)), share)
            out["wrong"].append(0.0 if t is None else wrong[new, c, MIDDLE + t].mean())
            out["inner"].append(0.0 if t is None else above[new, c, MIDDLE + t].sum() / max(counted[new, c].sum(), 1))
    return [float(np.mean(values)) for values in out.values()]


def guarantees(tasks: Sequence[Task], share: float = 0.2) -> None:
    """Print what risk control promises and what came of it; "–" where the draws support no threshold."""
    head("task", "stage", "missed by outer mask", "outer mask / structure", "wrong in inner mask", "inner mask / mask",
         "label sets by rank: missed")  # fmt: skip
    for task in tasks:
        for stage in task.tables:
            row(task.name, stage, *controlled(task, stage, share))


def ranking(task: Task) -> dict[str, Floats]:
    """Return, for each way to rank cases, one number per case; the lowest is trusted least."""
    found: dict[str, Floats] = {}
    for stage, table in task.tables.items():
        found |= {f"{way}, {stage}": values for way, values in rankings(table, task.classes).items()}
        for name in task.data.files:
            if name.startswith(f"{stage}/peer/"):
                found[f"{name.removeprefix(f'{stage}/peer/')}, {stage}"] = -task.data[name]
    del found["agreement of members, before"]
    return found


def detection(tasks: Sequence[Task]) -> None:
    """Print the area under the risk-coverage curve of every way to rank cases, with paired intervals."""
    head(
        "task",
        "cases ranked by",
        "AURC",
        "above the oracle",
        "minus expected Dice and members, after (95 %)",
        "Spearman",
    )
    for task in tasks:
        risk = risk_of(task.tables["after"], task.classes)
        defined = ~np.isnan(risk)  # else no structure is there and none was found
        risk, ways = risk[defined], {name: values[defined] for name, values in ranking(task).items()}
        groups = task.groups[defined]
        names, rng = sorted(set(groups)), np.random.default_rng(0)
        draws = [
            np.concatenate([np.flatnonzero(groups == name) for name in rng.choice(names, len(names))])
            for _ in range(1000)
        ]
        base, best = ways["expected Dice and members, after"], risk_area(-risk, risk)
        for name, values in sorted(ways.items(), key=lambda each: risk_area(each[1], risk)):
            gaps = [risk_area(values[own], risk[own]) - risk_area(base[own], risk[own]) for own in draws]
            low, high = percentile_interval(np.array(gaps), 0.95, len(names))
            ranks = [np.argsort(np.argsort(each)) for each in (values, -risk)]
            gap = f"{risk_area(values, risk) - risk_area(base, risk):+.4f} [{low:+.4f}, {high:+.4f}]"
            row(
                task.name,
                name,
                risk_area(values, risk),
                risk_area(values, risk) - best,
                gap,
                float(np.corrcoef(*ranks)[0, 1]),
            )


def reviews(tasks: Sequence[Task], tau: float = 0.7) -> None:
    """Print how many bad masks pass without a review, how many are reviewed, and verdicts against their own chance."""
    head("task", f"masks with Dice < {tau:g}", "of these pass, limit known", "bad and pass, of all, else",
         "empty and wrong, and pass, of all empty", "reviewed", "rows", "verdicts against their chance")  # fmt: skip
    for task in tasks:
        table = task.tables["after"]
        titles = tuple(f"{number}" for number in range(table.mask.shape[1]))
        passed, both, empty, seen, against = [], [], [], [], 0
        for known, new in task.divisions(repeats=300):
            judge = Judge.on(table.rows(known), titles, LEVEL, tau, task.classes[0] == 1)
            rows = iter(judge.rows([table.rows(new)], "voxels"))
            for i, c in ((i, c) for i in new for c in judge.structures):
                found, bad = next(rows), bool(table.dice[i, c] < tau)
                through = not found["review"]
                if table.empty[i, c]:
                    empty.append(bad and through)
                elif judge.bad[c].p_value(1.0, LEVEL) is None:
                    both.append(bad and through)
                elif bad:
                    passed.append(through)
                seen.append(not through)
                chance = found["dice_below_tau"]
                against += through and (chance is None or chance > 1 - LEVEL + SLACK)
        own = ~table.empty[:, list(task.classes)]
        share = float((table.dice < tau)[:, list(task.classes)][own].mean())
        shares = (float(np.mean(each)) if each else "–" for each in (passed, both, empty, seen))
        row(task.name, share, *shares, f"{len(seen):,}", against)


def ejection(task: Task) -> None:
    """Print the ejection fraction of linked cases: bias, error, coverage, width."""
    head("ejection fraction from", "bias (points)", "mean absolute error", "coverage", "mean width")
    marker = parse_biomarker("EF", EF, ["background", *task.titles])
    hard = replace(task.tables["after"], prob=task.tables["after"].mask, spread=np.ones_like(task.tables["after"].mask))
    for name, table in (*task.tables.items(), ("masks", hard)):
        subjects = link_cases(table.ids, r"(patient\d+)_frame(\d+)")
        values = {subject: volumes_of(marker, phases, table) for subject, phases in subjects.items()}
        off = {s: marker.value(v.truths) - marker.value(v.volumes) for s, v in values.items()}
        scales = {s: marker.scale(v.volumes, v.scales) for s, v in values.items()}
        hits, widths = [], []
        for known, new in task.divisions():
            own = {s: phases for s, phases in subjects.items() if set(phases.values()) <= set(known)}
            reach = quantile(np.abs(biomarker_errors(marker, own, table).signed), list(own), LEVEL)
            for subject in (s for s, phases in subjects.items() if set(phases.values()) <= set(new)):
                hits.append(abs(off[subject]) <= reach * scales[subject])
                widths.append(2 * reach * scales[subject])
        gaps = np.array(list(off.values()))
        row(name, float(-gaps.mean()), float(np.abs(gaps).mean()), float(np.mean(hits)), float(np.mean(widths)))


def stream_of(known: Floats, rows: Floats, rng: np.random.Generator, rate: float) -> int | None:
    """Return the draw at which a stream is called drifted."""
    p_values, kept = [], known
    sizes = size_columns((known.shape[1] - 3) // 10)
    seen = Compositions(np.exp(known[:, sizes]))
    for each in rows:
        smooth = rng.random()
        higher = column_p(kept, each, smooth)
        apart = rank_p(seen.scores(np.exp(each[sizes]), keep=True), smooth)
        p_values.append([atypical_p(kept, each, smooth), apart, *higher, *(1 - higher)])
        kept = np.vstack([kept, each])
    return weigh(np.array(p_values), len(known), rate, [[0], [1]]).reached


def streams(tasks: Sequence[Task], folder: Path) -> None:
    """Print false alarms of clean streams, and how soon spoiled ones are noticed."""
    head("task", "reference draws", "clean draws", "streams with a false alarm at 5 %", "at 1 %", "unusual at 5 %")
    for task in tasks:
        found = statistics_of(task.tables["after"], [str(c) for c in range(task.tables["after"].mask.shape[1])])
        rng, alarms, single = np.random.default_rng(0), [], []
        for _ in range(STREAMS):
            order = rng.permutation(len(found.rows))
            size = round(SHARE * len(order))
            known, new = found.rows[order[:size]], found.rows[order[size:]]
            alarms.append(
                [stream_of(known, new, np.random.default_rng(rng.integers(1 << 30)), r) for r in (0.05, 0.01)]
            )
            single.append(atypical_p(known, new[0]) <= 0.05)
        rates = [float(np.mean([each[k] is not None for each in alarms])) for k in (0, 1)]
        row(task.name, size, len(order) - size, *rates, float(np.mean(single)))
    print()
    head("spoiled stream", "noticed within 20 draws, at 1 %", "median draws until then", "Dice", "expected Dice")
    for path in sorted(folder.glob("*-*.npz")):
        task = next(each for each in tasks if path.stem.startswith(each.name))
        titles = [str(c) for c in range(task.tables["after"].mask.shape[1])]
        table = Task(path, task.titles).tables["after"]
        clean, spoiled = (statistics_of(each, titles).rows for each in (task.tables["after"], table))
        rng, found = np.random.default_rng(0), []
        for _ in range(100):
            known = clean[rng.permutation(len(clean))[: round(MOST_SHARE * len(clean))]]
            found.append(stream_of(known, spoiled[rng.permutation(len(spoiled))[:20]], rng, 0.01))
        noticed = [each + 1 for each in found if each is not None]
        risk, expected = risk_of(table, task.classes), rankings(table, task.classes)["expected Dice and members"]
        dice = "–" if np.isnan(risk).all() else float(1 - np.nanmean(risk))
        title = path.stem.replace("-", ": ").replace("_", ", ")
        soon = f"{np.median(noticed):g}" if noticed else "–"
        row(title, len(noticed) / len(found), soon, dice, float(expected.mean()))
    for task in tasks:
        risk, expected = (f(task.tables["after"], task.classes) for f in (risk_of, rankings))
        row(
            f"{task.name}: clean",
            "",
            "",
            float(1 - np.nanmean(risk)),
            float(expected["expected Dice and members"].mean()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="SUMS")
    parser.add_argument("--only", help="one of the tables")
    args = parser.parse_args()
    tasks = [
        Task(args.folder / f"{name}.npz", titles)
        for name, titles in TASKS.items()
        if (args.folder / f"{name}.npz").exists()
    ]
    for task in tasks:
        groups, name = len(set(task.groups)), task.data["chosen"]
        print(f"- {task.name}: {len(task.groups)} cases in {groups} groups, calibrated with {name}")
    tables: dict[str, Callable[[], None]] = {
        "errors": partial(errors, tasks),
        "intervals": partial(intervals, tasks),
        "guarantees": partial(guarantees, tasks),
        "reviews": partial(reviews, tasks),
        "ejection": partial(ejection, next(task for task in tasks if task.name == "cardiac")),
        "detection": partial(detection, tasks),
        "streams": partial(streams, tasks, args.folder),
    }
    for name, show in tables.items():
        if args.only in (None, name):
            print(f"\n## {name}\n", flush=True)
            show()


if __name__ == "__main__":
    main()
