"""What people wait for: commands on real ensembles, and `apply` and `evaluate` beside `cp` and reading, part by part.

    python -m benchmarks.pipeline [ROOT] [--cases 6] [--calibrator ts] [--threads 1]

ROOT holds ``predictions/TASK/member_M`` and ``TASK/labels``: 20 cardiac volumes and 50 street scenes of it go through
`segcal fit`, `trust`, `evaluate` and `apply` as a user calls them. CPU seconds are those of a whole process, with
start-up, the smaller of two runs, so that nothing is compiled. Beside them stand what others take for one temperature,
from voxels in memory (those that `segcal fit` draws), and reading and copying the files.

Without ROOT, made-up street scenes: five members of 11 classes, 360 x 480, float16, in the temporary folder, so that
the disk is its page cache and what is measured is what we add to it. One run for all rows; ratios to `cp` of what
`apply` reads, and to reading what `evaluate` reads, in CPU time and on the clock.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import segcal
from benchmarks.peers import peers
from benchmarks.voxels import Voxels
from paper.real_ensembles import ENSEMBLES, open_ensemble
from segcal.cases.base import Case
from segcal.evaluation.apply import Applier, calibrate
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.evaluate import DEFAULT_METRICS
from segcal.fitting.request import read_data
from segcal.metrics import find_metrics

MEMBERS, CLASSES, SPACE = 5, 11, (360, 480)
# Of each real ensemble, about so many cases.
REAL = {"cardiac": 20, "camvid": 50}
# How the command line declares what open_cases is told.
DECLARED = {"ignore": "--ignore", "groups": "--groups", "label_axes": "--label-axes"}


class Took(NamedTuple):
    """Seconds of CPU and on the clock."""

    cpu: float
    clock: float


def took(work: Callable[[], object]) -> Took:
    """Return how long a piece of work took."""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return Took(time.process_time() - cpu, time.perf_counter() - clock)


def command(*words: object) -> float:
    """Return the CPU seconds of one `segcal` command, its own and the system's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = [sys.executable, "-c", "from segcal_command import main; main()"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [*start, *map(str, words)],
        env=environment | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def smaller(*words: object) -> float:
    """Return the CPU seconds of a command that is run twice: the first run compiles, on a machine that has not yet."""
    return min(command(*words) for _ in range(2))


def measure_real(root: Path, task: str, folder: Path) -> dict[str, str]:
    """Return what the table says of one ensemble, by row."""
    own = open_ensemble(root, task, REAL[task], "mean_probs")
    for path in (path for case_id in own.ids for path in own.sources(case_id)):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.parent.name)
    members, count = sorted(folder.glob("member_*")), len(own)
    options = ["--kind", "logits"]
    for name, value in ENSEMBLES[task].declared.items():
        options += [DECLARED[name], value]
    files = [path for member in members for path in sorted(member.iterdir())]
    loading = took(lambda: [np.load(path) for path in files]).cpu
    copying = took(lambda: [shutil.copytree(member, folder / "copy" / member.name) for member in members]).cpu
    data = read_data(own, None, segcal.FitConfig())
    voxels = next(iter(data.source))
    drawn = Voxels(voxels.logits.numpy(), voxels.labels.numpy().astype(np.int64))
    single = {
        peer.name: took(peer.prepare(drawn)).cpu for peer in peers("ts") if peer.name in ("fiducio lbfgs", "netcal")
    }
    fit = ["fit", *members, folder / "labels", *options, "-o"]
    whole = smaller(*fit, folder / "cal", "--overwrite")
    untrusted = command(*fit, folder / "plain", "--trust-on", "none")
    trust = smaller("trust", folder / "cal", *members, *options, "-o", folder / "trust", "--overwrite")
    evaluate = smaller("evaluate", *members, folder / "labels", "--calibrator", folder / "cal", *options)
    calibrating = ("apply", folder / "cal", *members, *options, "-o")
    apply = min(command(*calibrating, folder / name) for name in ("first", "again"))
    started = smaller("evaluate", "--help")
    return {
        "cases": f"{count}",
        "np.load of all files": f"{loading:.2f}",
        "cp of all files": f"{copying:.2f}",
        **{f"one temperature, {name}": f"{seconds:.2f}" for name, seconds in single.items()},
        "one temperature, LBFGS of torch": f"{took(lambda: temperature_of(drawn)).cpu:.2f}",
        "start of a command": f"{started:.2f}",
        "segcal fit": f"{whole:.1f}",
        "of it, learning trust": f"{whole - untrusted:.1f}",
        "segcal trust": f"{trust:.1f}",
        "segcal evaluate, ms per case": f"{1e3 * evaluate / count:.0f}",
        "without the start": f"{1e3 * (evaluate - started) / count:.0f}",
        "segcal apply, x cp of what it reads": f"{apply / copying:.1f}",
        "without the start of it": f"{(apply - started) / copying:.1f}",
    }


def temperature_of(voxels: Voxels) -> float:
    """Return the temperature as most projects fit it."""
    logits, labels = torch.from_numpy(voxels.logits.T.copy()), torch.from_numpy(voxels.labels)
    beta = torch.ones((), requires_grad=True)
    optimizer = torch.optim.LBFGS([beta], max_iter=50)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(beta * logits, labels)
        value.backward()
        return value

    optimizer.step(loss)
    return 1 / float(beta.detach())


def show_real(root: Path) -> None:
    """Print what the commands take on real ensembles."""
    found = {}
    for task in REAL:
        with tempfile.TemporaryDirectory() as place:
            found[ENSEMBLES[task].title] = measure_real(root, task, Path(place) / task)
    print(f"| real ensembles, five members, CPU s | {' | '.join(found)} |\n|---|{'--:|' * len(found)}")
    for name in next(iter(found.values())):
        print(f"| {name} | {' | '.join(rows[name] for rows in found.values())} |", flush=True)


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
    """Print the tables of real ensembles, or those of made-up scenes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", metavar="ROOT")
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--calibrator", default="ts", choices=list(segcal.CALIBRATORS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.root is not None:
        show_real(args.root)
        return
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
