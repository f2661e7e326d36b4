"""Margins around masks on real ensembles, beside sets by probability that promise the same.

    python -m paper.margins measure paper/protocols/cardiac.toml --root DATA -o DIR --fit 24
    python -m paper.margins measure paper/protocols/tumour.toml -o DIR --fit 12 --calibrator ts
    python -m paper.margins table DIR -o paper/results/margins.md

`measure` chooses a calibrator by the rule of ``segcal fit`` on a few cases (whole groups) and takes, of every other
case, what margins and probabilities are compared by: the mask is the argmax of the mean logits of the members, and
their own masks are the repeated runs (embedded volumes, which have a voxel size, are one run). Losses and sizes are
kept by margin (exactly) and by threshold of the calibrated probability (:data:`segcal.trust.sums.THRESHOLDS`), so that
nothing is measured twice and no image is kept. With ``--check N``, distances of N cases are compared with those of a
k-d tree over all voxel centres, without segcal.

`table` divides the cases 1,000 times, whole groups, into a reference (60 %) and new cases, and counts on the new ones
what is promised: the mean over groups of the mean over their cases. Both kinds of outer sets are made for the same
share and level, so their sizes can be compared. Thickness is what is added to, or taken from, the mask divided by the
surface of the mask (faces of voxels), in the unit of the task.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree

import segcal
from paper.stamp import code_digest
from segcal.atomic import write_text
from segcal.benchmark.protocol import load_protocol
from segcal.benchmark.tasks import open_task
from segcal.demo.embedded import open_embedded
from segcal.evaluation.slabs import calibrated_scores
from segcal.fitting.artifact import load, save
from segcal.trust.conformal import mean_over_draws, quantile
from segcal.trust.margins import LossSteps, controlled, distance_from, missed_by, volume_scale, wrong_in
from segcal.trust.sums import THRESHOLDS

REPEATS, REFERENCE, LEVEL, SHARE = 1000, 0.6, 0.9, 0.95
MIDDLE = len(THRESHOLDS) // 2
# Places of sets by probability: 0 is the mask itself, then thresholds below, or above, a half.
PLACES = np.arange(MIDDLE + 1.0)


class Measured(NamedTuple):
    """One structure of one case; sizes of outer and inner sets are steps over the same places as losses."""

    group: str
    surface: float
    voxel: float
    volumes: list[int]
    truth: int
    steps: dict[str, LossSteps]


def surface_of(mask: np.ndarray, spacing: Sequence[float]) -> float:
    """Return the faces between voxels of a mask and others, in squares of the unit (lengths for pictures)."""
    total = 0.0
    for axis in range(mask.ndim):
        area = np.prod([size for other, size in enumerate(spacing) if other != axis])
        total += area * np.count_nonzero(np.diff(mask.astype(np.int8), axis=axis))
    return float(total)


def sizes_by(distance: np.ndarray) -> LossSteps:
    """Return how many voxels lie within each distance."""
    places, counts = np.unique(distance[np.isfinite(distance)], return_counts=True)
    places, counts = np.append(0.0, places), np.append(0, counts)
    return LossSteps(places, np.cumsum(counts).astype(float))


def measure_structure(
    group: str, spacing: Sequence[float] | None, mask: np.ndarray, truth: np.ndarray, prob: np.ndarray, runs: list[int]
) -> Measured:
    """Return what is kept of one structure of one case."""
    edges = THRESHOLDS.astype(np.float32)
    outer = [mask, *((prob >= edge) | mask for edge in edges[MIDDLE - 1 :: -1])]
    inner = [mask, *((prob >= edge) & mask for edge in edges[MIDDLE + 1 :])]
    steps = {}
    if truth.any():
        steps["missed"] = missed_by(mask, truth, spacing)
        missed = [np.count_nonzero(truth & ~each) for each in outer]
        steps["missed_by_prob"] = LossSteps(PLACES, np.array(missed) / truth.sum())
    if mask.any():
        steps["wrong"] = wrong_in(mask, truth, spacing)
        wrong = np.array([np.count_nonzero(each & ~truth) / max(np.count_nonzero(each), 1) for each in inner])
        steps["wrong_by_prob"] = LossSteps(PLACES, np.maximum.accumulate(wrong[::-1])[::-1])
        steps["grown"] = sizes_by(distance_from(mask, spacing))
        deep = sizes_by(distance_from(~mask, spacing)[mask])
        steps["shrunk"] = LossSteps(deep.places, deep.losses[-1] - deep.losses)
        for name, sets in (("grown_by_prob", outer), ("shrunk_by_prob", inner)):
            steps[name] = LossSteps(PLACES, np.array([np.count_nonzero(each) for each in sets], float))
    sizes = [1.0] * mask.ndim if spacing is None else spacing
    return Measured(group, surface_of(mask, sizes), float(np.prod(sizes)), runs, int(truth.sum()), steps)


def check_by_tree(
    steps: dict[str, LossSteps], mask: np.ndarray, truth: np.ndarray, spacing: Sequence[float] | None
) -> float:
    """Return the largest difference of losses from those of a k-d tree over voxel centres, which knows no segcal."""
    sizes = np.ones(mask.ndim) if spacing is None else np.array(spacing)
    worst = 0.0
    if "missed" in steps and mask.any():
        far = cKDTree(np.argwhere(mask) * sizes).query(np.argwhere(truth) * sizes)[0]
        for margin in (0.0, 0.5, 1.2, 2.3, 5.1, 9.7):
            worst = max(worst, abs(np.mean(far > margin) - steps["missed"].at(margin)))
    if "wrong" in steps and not mask.all():
        # 5 x 2.4 mm and 2 x 6 mm are one distance, whatever the last bits are.
        deep = np.round(cKDTree(np.argwhere(~mask) * sizes).query(np.argwhere(mask) * sizes)[0], 6)
        right = truth[mask]
        for margin in (0.0, 0.5, 1.2, 2.3, 5.1):
            shares = [np.mean(~right[deep > m]) for m in (margin, *np.unique(deep)) if m >= margin and (deep > m).any()]
            worst = max(worst, abs(max(shares, default=0.0) - steps["wrong"].at(margin)))
    return worst


def measure(args: argparse.Namespace) -> None:
    """Measure a task, and keep it as DIR/TASK.npz."""
    task = load_protocol(args.protocol).tasks[0]
    opener = partial(open_embedded, cache=args.output / "embedded")
    cases = open_task(task, "mean_logits", args.root, opener).cases
    split = cases.split(cal=args.fit, seed=0)
    args.output.mkdir(parents=True, exist_ok=True)
    place = args.output / f"calibrator_{task.name}"
    if not place.exists():
        save(segcal.fit(args.calibrator, split.cal) if args.calibrator else segcal.choose(split.cal), place)
    calibrator = load(place).calibrator
    arrays: dict[str, np.ndarray] = {}
    rows, checked, worst, sized = [], 0, 0.0, set()
    for done, case_id in enumerate(split.test.ids):
        case = cases.checked(case_id)
        labels, decided = case.labels.numpy(), case.logits.argmax(0).numpy()
        if case.mask is not None:  # nothing was predicted there
            decided[~case.mask.numpy()] = 0
        with torch.no_grad():
            probs = torch.softmax(calibrated_scores(calibrator, case, "cpu"), 0).numpy()
        runs = [member.argmax(0).numpy() for member in cases.member_logits(case_id)] or [decided]
        spacing = case.spacing
        sized.add(spacing is not None)
        for number in range(1, cases.num_classes):
            mask, truth = decided == number, labels == number
            volumes = [int((run == number).sum()) for run in runs]
            group, *rest, steps = measure_structure(
                str(case.group or case_id), spacing, mask, truth, probs[number], volumes
            )
            if done < args.check:
                checked, worst = checked + 1, max(worst, check_by_tree(steps, mask, truth, spacing))
            arrays |= {f"{len(rows)}/{name}": np.stack(each) for name, each in steps.items()}
            rows.append([number, group, *rest])
        print(f"\r{done + 1} of {len(split.test.ids)}", end="", flush=True)
    print(f"\n{checked} structures of cases by a k-d tree: losses differ by at most {worst:.1e}")
    assert worst < 1e-9, "distances are wrong"
    facts = {
        "rows": rows, "titles": list(cases.class_names or ()), "calibrator": calibrator.name,
        "unit": "mm" if sized == {True} else "voxels", "checked": checked, "worst": worst,
    }  # fmt: skip
    np.savez_compressed(args.output / f"{task.name}.npz", facts=np.array(json.dumps(facts)), **arrays)


def read(path: Path) -> tuple[dict[str, object], dict[str, list[Measured]]]:
    """Return what is known of a task, and by structure what was measured."""
    data = np.load(path)
    facts = json.loads(str(data["facts"]))
    steps: dict[int, dict[str, LossSteps]] = {}
    for key in data.files:
        if key != "facts":
            row, name = key.split("/")
            steps.setdefault(int(row), {})[name] = LossSteps(*data[key])
    found: dict[str, list[Measured]] = {}
    for place, (number, *rest) in enumerate(facts["rows"]):
        found.setdefault(facts["titles"][number], []).append(Measured(*rest, steps.get(place, {})))
    return facts, found


def divisions(groups: Sequence[str], seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the places of the reference and of the new cases."""
    rng, names = np.random.default_rng(seed), sorted(set(groups))
    for _ in range(REPEATS):
        drawn = {names[i] for i in rng.permutation(len(names))[: round(REFERENCE * len(names))]}
        own = np.array([group in drawn for group in groups])
        yield np.flatnonzero(own), np.flatnonzero(~own)


class Counted(NamedTuple):
    """What one kind of set amounts to over divisions: the promise kept, its error, places, sizes."""

    kept: float
    error: float
    place: float
    low: float
    high: float
    changed: float
    thickness: float
    none: float


def count(found: Sequence[Measured], loss: str, size: str, on_average: bool) -> Counted:
    """Divide again and again; return what was kept of the promise, with its Monte Carlo error, and sizes."""
    own = [each for each in found if loss in each.steps]
    groups, steps = [each.group for each in own], [each.steps[loss] for each in own]
    scores = np.array([each.first(1 - SHARE) for each in steps])
    tried: list[tuple[float, ...]] = []
    for old, new in divisions(groups):
        ours = [groups[i] for i in old]
        place = (
            controlled([steps[i] for i in old], ours, 1 - SHARE) if on_average else quantile(scores[old], ours, LEVEL)
        )
        if np.isfinite(place):
            good = [1 - steps[i].at(place) if on_average else float(scores[i] <= place) for i in new]
            kept = float(mean_over_draws(good, [groups[i] for i in new]))
            made = [own[i] for i in new if size in own[i].steps]
            before = np.array([each.steps[size].at(0.0) for each in made])
            change = np.abs([each.steps[size].at(place) for each in made] - before)
            per_face = change * [each.voxel / each.surface for each in made]
            tried.append((kept, place, float(np.mean(change / before)), float(np.mean(per_face))))
    if not tried:
        return Counted(*[np.nan] * 7, none=1.0)
    kept, places, changed, thick = np.array(tried).T
    low, high = np.percentile(places, [5, 95])
    return Counted(kept.mean(), kept.std() / np.sqrt(len(kept)), places.mean(), low, high, changed.mean(), thick.mean(),
                   1 - len(tried) / REPEATS)  # fmt: skip


def count_volumes(
    found: Sequence[Measured], runs: int, scale: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    """Return the coverage of intervals of the volume, and their mean width as a share of the mean true volume."""
    own = [each for each in found if any(each.volumes[:runs])]
    groups = [each.group for each in own]
    truth, middle = np.array([each.truth for each in own]), np.array([np.mean(each.volumes[:runs]) for each in own])
    scales = np.array([scale(each.volumes[:runs]) for each in own])
    scores = np.abs(truth - middle) / scales
    tried = []
    for old, new in divisions(groups):
        reach = quantile(scores[old], [groups[i] for i in old], LEVEL)
        kept = mean_over_draws((scores[new] <= reach).astype(float), [groups[i] for i in new])
        low, high = np.maximum(middle - reach * scales, 0)[new], (middle + reach * scales)[new]
        tried.append((float(kept), float(np.mean(high - low) / truth.mean())))
    kept, width = np.array(tried).mean(0)
    return float(kept), float(width)


def table(args: argparse.Namespace) -> None:
    """Write the tables."""
    tasks = {path.stem: read(path) for path in sorted(args.folder.glob("*.npz"))}
    stamp = f"segcal {segcal.__version__} (sources {code_digest()}), {datetime.now(UTC):%Y-%m-%d}"
    lines = [f"*{stamp}, {REPEATS:,} divisions: `python -m paper.margins`*", ""]
    for title, loss, size, on_average in (
        (f"Outer masks that cover {SHARE:.0%} of the structure in {LEVEL:.0%} of new cases", "missed", "grown", False),
        (f"Outer masks that cover {SHARE:.0%} of the structure on average", "missed", "grown", True),
        (f"Inner masks of which {SHARE:.0%} is the structure in {LEVEL:.0%} of new cases", "wrong", "shrunk", False),
        (f"Inner masks of which {SHARE:.0%} is the structure on average", "wrong", "shrunk", True),
    ):
        lines += [f"**{title}**", "", f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
        for name, (facts, found) in tasks.items():
            for structure, own in found.items():
                margin = count(own, loss, size, on_average)
                prob = count(own, f"{loss}_by_prob", f"{size}_by_prob", on_average)
                cells = [
                    name, structure, f"{margin.kept:.3f} ± {margin.error:.3f}",
                    f"{margin.place:.2f} ({margin.low:.2f} to {margin.high:.2f}) {facts['unit']}",
                    f"{margin.changed:.1%}", f"{margin.thickness:.2f}",
                    f"{prob.kept:.3f}", f"{prob.changed:.1%}", f"{prob.thickness:.2f}",
                    f"{margin.none:.1%}, {prob.none:.1%}",
                ]  # fmt: skip
                lines.append(f"| {' | '.join('none' if cell.startswith('nan') else cell for cell in cells)} |")
                print(lines[-1], flush=True)
        lines.append("")
    head = ("task", "structure", "all runs: coverage", "width", "without their spread", "width", "one run", "width")
    lines += [f"**Intervals of volumes at {LEVEL:.0%}**", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, (_, found) in tasks.items():
        for structure, own in found.items():
            mean = [count_volumes(own, *how) for how in ((99, volume_scale), (99, np.mean), (1, volume_scale))]
            cells = [f"{kept:.3f} | {width:.1%}" for kept, width in mean]
            lines.append(f"| {name} | {structure} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    checked = ", ".join(f"{facts['checked']} in {name} ({facts['worst']:.0e})" for name, (facts, _) in tasks.items())
    lines += [
        "",
        f"Losses by a k-d tree over voxel centres, structures of cases and largest difference: {checked}.",
        "",
    ]
    write_text(args.output, "\n".join(lines))


HEAD = (
    "task", "structure", "margins: kept", "margin, mean (5 to 95 %)", "size changed", "thickness",
    "probability: kept", "size changed", "thickness", "no set",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("measure")
    one.add_argument("protocol", type=Path)
    one.add_argument("--root", type=Path, default=Path())
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--fit", type=int, required=True, help="cases that the calibrator is chosen on")
    one.add_argument("--calibrator", help="fit this one instead of choosing one")
    one.add_argument("--check", type=int, default=6, help="cases that a k-d tree measures too")
    one.set_defaults(run=measure)
    two = parts.add_parser("table")
    two.add_argument("folder", type=Path)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
