"""Speed and reach of fitting, beside what a user would pick instead.

    python -m benchmarks.fit PREDICTIONS DATA [--limit SECONDS] [--trials N] [--parts ...] [--calibrators ...]

PREDICTIONS holds ``TASK/member_M/CASE.npy`` (logits), DATA ``TASK/labels/CASE.png``, for the tasks camvid and roads.
Everybody gets the same voxels: mean logits of all members, drawn uniformly once. All NLLs are computed here, in
float64, from the scores that an entry gives. The clock runs around the fit alone; before it, each of our fits
is made once on few voxels, so that no compilation is timed, and each library is imported. Fits that take less than
two seconds are made three times and the fastest counts, for everybody.

The paper's procedure makes 20 trials, which take minutes each calibrator. With --trials N only N are made and the
time is scaled to 20, marked with ~; for the final table use --trials 20 --limit 1200.

Conic scaling looks around voxels, so the part `images` fits it and cms_ap to 20,000 voxels of each of 20 images: at one
strength, and with the strength chosen on folds. Its seconds are processor time.

Tables are Markdown, on stdout; what was used and which floors held is said on stderr.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import segcal
from benchmarks.memory import measure_memory
from benchmarks.peers import Map, Peer, peers
from benchmarks.voxels import IGNORE, Voxels, draw
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data

TASKS = {"camvid": "street scenes", "roads": "aerial roads"}
CALIBRATORS = ("ts", "dc", "cdc", "cms_ap", "cms_op")
# Compared with other libraries, but not with the paper's procedure, which evaluates none of them at length.
MORE = ("vs", "ms", "ms_c")
VOXELS = (400_000, 200_000)
PAPER_TRIALS = 20
ABSENT = "not installed"
AROUND = ("ts", "cms_ap", "conic", "conic_class")


@dataclass(frozen=True)
class Row:
    """One line of a table; without an objective it did not finish, and `note` says why."""

    name: str
    seconds: float = float("nan")
    objective: float = float("nan")
    validation: float = float("nan")
    passes: int | None = None
    note: str = ""
    same_model: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one fit of another library")
    parser.add_argument("--trials", type=int, default=2, help="trials of the paper's procedure, of 20; 0: without")
    parser.add_argument("--voxels", type=int, nargs=2, default=VOXELS, help="calibration and validation voxels")
    parser.add_argument("--parts", default="fit,strengths,images,memory")
    parser.add_argument("--images", type=int, default=20, help="of the part images")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which a fit of the part memory is stopped")
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 4, 8, 16], help="voxels of the part memory")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--calibrators", default=",".join((*CALIBRATORS, *MORE)))
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}", file=sys.stderr)
    floors: list[tuple[bool, str]] = []
    for task in args.tasks.split(",") if "images" in args.parts else ():
        on_images(args.predictions / task, args.data / task / "labels", IGNORE[task], args.images)
    for task in args.tasks.split(",") if {"fit", "strengths"} & {*args.parts.split(",")} else ():
        cal, val = draw(args.predictions, args.data, task, tuple(args.voxels))
        if "fit" in args.parts:
            print_head(f"{TASKS[task]}, {len(cal.logits)} classes, {len(cal.labels):,} + {len(val.labels):,} voxels")
            for name in args.calibrators.split(","):
                floors += compare(task, name, cal, val, args.limit, args.trials)
            print()
        if "strengths" in args.parts and args.trials:
            equal_strengths(cal, val, args.trials)
    if "memory" in args.parts:
        floors += measure_memory(args.predictions, args.data, args.millions, args.seconds)
    for held, text in floors:
        print(f"{'PASS' if held else 'FAIL'}  {text}", file=sys.stderr)


def compare(task: str, name: str, cal: Voxels, val: Voxels, limit: float, trials: int) -> list[tuple[bool, str]]:
    """Print the table of one calibrator without penalties, and return its floors."""
    rows = [ours(name, cal, val, 0.0)]
    paper = papers(name, cal, val, 0.0, trials) if name in CALIBRATORS and trials else None
    rows += [paper] if paper else []
    found = [peer_row(peer, cal, val, limit) for peer in peers(name)]
    for row in found:
        print(f"{name}: {row.name} {row.note}", file=sys.stderr) if row.note.startswith(ABSENT) else None
    rows += [row for row in found if not row.note.startswith(ABSENT)]
    print_table(name, rows)
    return list(floors_of(f"{task} {name}", name, rows, paper))


def floors_of(title: str, name: str, rows: list[Row], paper: Row | None) -> Iterator[tuple[bool, str]]:
    own = rows[0]
    comparable = [row for row in rows[1:] if np.isfinite(row.objective) and row.same_model]
    if not comparable:
        return
    best = min(comparable, key=lambda row: row.objective)
    yield (
        own.objective <= best.objective + 1e-6,
        f"{title}: objective {own.objective:.7f}, best other {best.objective:.7f} ({best.name})",
    )
    near = [row for row in comparable if row.objective <= own.objective + 1e-4 and row is not paper]
    needed = 5 if name == "ts" else 3
    if near:
        fastest = min(near, key=lambda row: row.seconds)
        ratio = fastest.seconds / own.seconds
        yield ratio >= needed, f"{title}: {ratio:.1f} times faster than {fastest.name}, {needed} needed"
    else:
        yield True, f"{title}: nobody else comes within 1e-4"
    if paper is not None:
        ratio = paper.seconds / own.seconds
        yield ratio >= 20, f"{title}: {ratio:.0f} times faster than the paper's procedure, 20 needed"


def on_images(predictions: Path, labels: Path, ignore: int | None, count: int = 20) -> None:
    """Print how long calibrators take that look around voxels, beside those that do not."""
    members = sorted(predictions.glob("member_*"))
    every = segcal.open_cases(members, labels, kind="logits", pooling="mean_logits", ignore=ignore)
    chosen = every.subset(every.ids[:: len(every) // count][:count])
    one = segcal.FitConfig(lam=1e-3, mu=1e-3, nu=1e-3)
    data = read_data(chosen, None, one, contexts=segcal.make_calibrator("conic", every.num_classes).wants)
    title = f"{TASKS[predictions.name]}, {data.source.used:,} voxels of {len(chosen)} images"
    print(f"| {title} | parameters | CPU s, one strength | passes | residual | CPU s, strength chosen |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    few = read_data(chosen, None, segcal.FitConfig(voxels=100), contexts=segcal.make_calibrator("conic", 2).wants)
    for name in AROUND:
        fit_to(name, few, one, "cpu")  # so that no compilation is timed
        runs = (partial(fit_to, name, data, config, "cpu") for config in (one, segcal.FitConfig()))
        fits = [timed(run, time.process_time) for run in runs]
        (fitted, seconds), (_, whole) = fits
        proof, size = fitted.certificate, fitted.calibrator.num_parameters()
        cells = (name, f"{size:,}", f"{seconds:.2f}", proof.passes, f"{proof.kkt_residual:.0e}", f"{whole:.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print()


def equal_strengths(cal: Voxels, val: Voxels, trials: int, strength: float = 1e-3) -> None:
    """Print objectives with the same penalty, ours beside the paper's procedure."""
    print(
        f"| objective with lam = mu = {strength:g} | ours | paper's procedure | above |\n| --- | ---: | ---: | ---: |"
    )
    for name in CALIBRATORS[1:]:
        exact = fit_ours(name, cal, None, strength).certificate.objective
        config = segcal.FitConfig.paper(lam=strength, mu=strength, voxels=len(cal.labels), trials=trials)
        found = segcal.fit(name, cases(cal), cases(val), config).certificate.objective
        print(f"| {name} | {exact:.7f} | {found:.7f} | {found - exact:.1e} |", flush=True)
    print()


def ours(name: str, cal: Voxels, val: Voxels, strength: float) -> Row:
    """Fit to the optimum, on all voxels."""
    fit_ours(name, Voxels(cal.logits[:, :2000], cal.labels[:2000]), None, strength)
    fitted, seconds = timed(lambda: fit_ours(name, cal, None, strength))
    return finished("segcal", own_map(fitted), seconds, cal, val, fitted.certificate.passes)


def papers(name: str, cal: Voxels, val: Voxels, strength: float, trials: int) -> Row:
    """Fit as in the paper; the time is that of 20 trials."""
    config = segcal.FitConfig.paper(lam=strength, mu=strength, voxels=len(cal.labels), trials=trials)
    start = time.perf_counter()
    fitted = segcal.fit(name, cases(cal), cases(val), config)
    seconds = (time.perf_counter() - start) * PAPER_TRIALS / trials
    note = "" if trials == PAPER_TRIALS else f"~ from {trials} of {PAPER_TRIALS} trials"
    return finished("paper's procedure", own_map(fitted), seconds, cal, val, fitted.certificate.passes, note)


def peer_row(peer: Peer, cal: Voxels, val: Voxels, limit: float) -> Row:
    """Fit with another library, if it is there and fast enough."""
    try:
        fit = peer.prepare(cal)
    except ImportError as error:
        return Row(peer.name, note=f"{ABSENT} ({error})")
    try:
        with stopped_after(limit):
            fitted, seconds = timed(fit)
    except TimeoutError:
        return Row(peer.name, note=f"stopped at {limit:g} s")
    except Exception as error:  # whatever another library does, the table goes on
        return Row(peer.name, note=f"failed: {type(error).__name__}: {str(error)[:60]}")
    if peer.other_model:
        row = finished(peer.name, fitted, seconds, cal, val, note="another model, with a penalty")
        return replace(row, same_model=False)
    return finished(peer.name, fitted, seconds, cal, val)


def finished(
    name: str, fitted: Map, seconds: float, cal: Voxels, val: Voxels, passes: int | None = None, note: str = ""
) -> Row:
    return Row(name, seconds, mean_nll(fitted, cal), mean_nll(fitted, val), passes, note)


def mean_nll(fitted: Map, voxels: Voxels, step: int = 50_000) -> float:
    """Return the mean negative log-likelihood in float64."""
    total = 0.0
    for start in range(0, len(voxels.labels), step):
        part = slice(start, start + step)
        scores = np.asarray(fitted(voxels.logits[:, part].T.astype(np.float64)), dtype=np.float64)
        scores = scores - scores.max(1, keepdims=True)
        own = scores[np.arange(len(scores)), voxels.labels[part]]
        total += float((np.log(np.exp(scores).sum(1)) - own).sum())
    return total / len(voxels.labels)


def fit_ours(name: str, cal: Voxels, val: Voxels | None, strength: float) -> segcal.fitting.Fitted:
    config = segcal.FitConfig(lam=strength, mu=strength, voxels=len(cal.labels))
    return segcal.fit(name, cases(cal), None if val is None else cases(val), config)


def cases(voxels: Voxels) -> segcal.ArrayCases:
    return segcal.ArrayCases(logits=[voxels.logits], labels=[voxels.labels])


def own_map(fitted: segcal.fitting.Fitted) -> Map:
    @torch.no_grad()
    def scores(z: np.ndarray) -> np.ndarray:
        return fitted.calibrator.scores(torch.from_numpy(z)).numpy()

    return scores


def timed(fit: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[Any, float]:
    """Return the result and the seconds; short fits are made three times."""
    best = float("inf")
    for _ in range(3):
        start = clock()
        result = fit()
        best = min(best, clock() - start)
        if best > 2:
            break
    return result, best


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block when the time is over."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def print_head(title: str) -> None:
    print(f"| {title} | seconds | times slower | objective | above | validation NLL | passes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")


def print_table(name: str, rows: list[Row]) -> None:
    for row in rows:
        if not np.isfinite(row.objective):
            print(f"| {name}: {row.name} | {row.note} | | | | | |", flush=True)
            continue
        above = "" if row is rows[0] else f"{row.objective - rows[0].objective:.1e}"
        scaled = "~" if row.note.startswith("~") else ""
        numbers = (f"{scaled}{row.seconds:.2f}", f"{row.seconds / rows[0].seconds:.1f}", f"{row.objective:.7f}", above)
        other = "" if row.same_model else " (another model)"
        passes = "" if row.passes is None else row.passes
        cells = (f"{name}: {row.name}{other}", *numbers, f"{row.validation:.7f}", passes)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
