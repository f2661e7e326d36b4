"""`segcal apply` of a folder beside `cp`, and `segcal evaluate` beside reading the files; which part bounds each.

    python -m benchmarks.pipeline [--cases 6] [--calibrator ts] [--threads 1]

Made-up street scenes: five members of 11 classes, 360 x 480, float16, in the machine's temporary folder, so that the
disk is its page cache and what is measured is what we add to it. One run for all rows; ratios to `cp` of what `apply`
reads, and to reading what `evaluate` reads, in CPU time and on the clock.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import segcal
from segcal.cases.base import Case
from segcal.evaluation.apply import Applier, calibrate
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.evaluate import DEFAULT_METRICS
from segcal.metrics import find_metrics

MEMBERS, CLASSES, SPACE = 5, 11, (360, 480)


class Took(NamedTuple):
    """Seconds of CPU and on the clock."""

    cpu: float
    clock: float


def took(work: Callable[[], object]) -> Took:
    """Return how long a piece of work took."""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return Took(time.process_time() - cpu, time.perf_counter() - clock)


def make_files(folder: Path, count: int) -> None:
    """Write members and labels."""
    rng = np.random.default_rng(0)
    for name in [*(f"member_{number}" for number in range(MEMBERS)), "labels"]:
        (folder / name).mkdir()
    coarse = SPACE[0] // 20, SPACE[1] // 20
    for number in range(count):
        truth = rng.normal(size=(CLASSES, *coarse)).repeat(20, 1).repeat(20, 2)
        for member in range(MEMBERS):
            noisy = 4 * truth + rng.normal(size=truth.shape)
            np.save(folder / f"member_{member}" / f"case_{number}.npy", noisy.astype("float16"))
        labels = (3 * truth + rng.gumbel(size=truth.shape)).argmax(0).astype("uint8")
        np.save(folder / "labels" / f"case_{number}.npy", labels)


def table(title: str, base: str, rows: dict[str, Took], parts: tuple[str, ...], count: int) -> None:
    """Print one table, and which part bounds it."""
    print(f"\n| {title} | CPU ms per case | x {base} | ms on the clock | x {base} |\n|---|--:|--:|--:|--:|")
    for name, (cpu, clock) in rows.items():
        ratios = cpu / rows[base].cpu, clock / rows[base].clock
        print(f"| {name} | {1e3 * cpu / count:.1f} | {ratios[0]:.1f} | {1e3 * clock / count:.1f} | {ratios[1]:.1f} |")
    slowest = max(parts, key=lambda name: rows[name].clock)
    print(f"\nBound by {slowest}: {rows[slowest].clock / sum(rows[name].clock for name in parts):.0%} of the parts.")


def measure_apply(folder: Path, fitted: segcal.Fitted) -> dict[str, Took]:
    """Measure `cp`, `segcal.apply` and its parts on one member's folder."""
    cases = segcal.open_cases(folder / "member_0", kind="logits")
    copied = took(lambda: shutil.copytree(folder / "member_0", folder / "copy"))
    whole = took(lambda: segcal.apply(fitted, cases, folder / "out"))
    applier, read = Applier(fitted, cases, folder / "again"), list[Case]()
    reading = took(lambda: read.extend(cases))
    made = [calibrate(fitted.calibrator, case) for case in read]  # once more below, so that nothing is new there
    computing = took(lambda: [calibrate(fitted.calibrator, case) for case in read])

    def write() -> None:
        for case, (log_probs, before, _) in zip(read, made, strict=True):
            applier._writer.write(case.id, log_probs, before)

    return {"cp": copied, "segcal apply": whole, "reading": reading, "computing": computing, "writing": took(write)}


def measure_evaluate(folder: Path, fitted: segcal.Fitted) -> tuple[dict[str, Took], Took]:
    """Measure reading the files of an ensemble, `segcal.evaluate` and its parts; and what intervals cost, once."""
    members = [folder / f"member_{number}" for number in range(MEMBERS)]
    files = [path for own in (*members, folder / "labels") for path in sorted(own.glob("*.npy"))]
    cases = segcal.open_cases(members, folder / "labels", kind="logits", pooling="mean_logits")
    plain = took(lambda: [np.load(path) for path in files])
    whole = took(lambda: segcal.evaluate(cases, fitted))
    without = took(lambda: segcal.evaluate(cases, fitted, replicates=1))
    once = Took(whole.cpu - without.cpu, whole.clock - without.clock)
    read, counter = list[Case](), Counter(find_metrics(DEFAULT_METRICS))
    reading = took(lambda: read.extend(cases))
    counting = took(lambda: [counter.count(case, fitted.calibrator) for case in read])
    rows = {"np.load": plain, "segcal evaluate": without, "reading and pooling": reading, "counting": counting}
    return rows, once


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--calibrator", default="ts", choices=list(segcal.CALIBRATORS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_files(folder, args.cases)
        own = segcal.open_cases(folder / "member_0", folder / "labels", kind="logits")
        single = segcal.fit(args.calibrator, own)
        members = [folder / f"member_{number}" for number in range(MEMBERS)]
        pooled = segcal.open_cases(members, folder / "labels", kind="logits", pooling="mean_logits")
        fitted = segcal.fit(args.calibrator, pooled)
        segcal.evaluate(pooled.subset(pooled.ids[:1]), fitted)  # compiles, on a machine that has not yet
        print(f"{args.calibrator}, {args.cases} cases, {args.threads} threads")
        parts = ("reading", "computing", "writing")
        table("apply, one network", "cp", measure_apply(folder, single), parts, args.cases)
        rows, once = measure_evaluate(folder, fitted)
        table(f"evaluate, {MEMBERS} members", "np.load", rows, ("reading and pooling", "counting"), args.cases)
        print(f"\nIntervals, once per run: {1e3 * once.cpu:.0f} ms of CPU, {1e3 * once.clock:.0f} ms on the clock.")


if __name__ == "__main__":
    main()
