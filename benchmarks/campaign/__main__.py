"""A campaign against segcal: ``python -m benchmarks.campaign [--trials 3000] [--seed 0] [--only KIND] [--workers 2]``.

Each trial has a small world of its own, in which files are damaged, places are taken, names are hostile, commands are
killed or run at once; one command or call runs there, and the judge compares the world before and after. What counts:
files of a user's that are lost or changed, writes outside of the targets, addresses that the command line does not
name, code that was data, programs, crashes, hangs, memory, other bytes after a kill, what stays, tracebacks, and
messages that are not in the house's form. A trial that found something is printed with what repeats it:
``--seed S --only KIND --first N --trials 1``.

Exit code 0: nothing was found; 1: something was.
"""

import os

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path

from benchmarks.campaign.judge import FAULTS
from benchmarks.campaign.trials import KINDS, Found, plan, work

LIBRARIES = (
    "nibabel",
    "zarr",
    "fsspec.implementations.local",
    "fsspec.implementations.memory",
    "matplotlib.figure",
    "PIL.Image",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, help="this kind alone")
    parser.add_argument("--first", type=int, default=0, help="with --only: the number of the first trial")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    trials = plan(args.trials, args.only, args.first)
    begun = time.monotonic()
    warm()
    print(f"campaign of {len(trials)} trials, seed {args.seed}", flush=True)
    found = run(trials, args.seed, args.workers)
    return report(found, trials, args.seed, time.monotonic() - begun)


def warm() -> None:
    """Import everything once, so that a trial is a fork; nothing is run here that starts threads."""
    import torch

    from segcal.cli.commands import COMMANDS

    torch.set_num_threads(1)
    for name in [
        *(f"segcal.cli.{file}" for file, _ in COMMANDS.values()),
        "segcal.cli.dispatch",
        *LIBRARIES,
    ]:
        import_module(name)


def run(trials: list[tuple[str, int]], seed: int, workers: int) -> list[Found]:
    """Run trials in some processes; print each that found something as it ends."""
    place = Path(tempfile.mkdtemp(prefix="campaign-"))
    reading, writing = os.pipe()
    children = []
    for number in range(workers):
        child = os.fork()
        if not child:
            os.close(reading)
            os.nice(5)
            try:
                work(place / f"box{number}", seed, trials[number::workers], writing)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        children.append(child)
    os.close(writing)
    found = []
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            kind, number, words, faults = json.loads(line)
            found.append(Found(kind, number, words, tuple((name, about) for name, about in faults)))
            if faults:
                show(found[-1], seed)
    for child in children:
        os.waitpid(child, 0)
    shutil.rmtree(place, ignore_errors=True)
    return found


def show(one: Found, seed: int) -> None:
    """Print a trial that found something."""
    print(f"--seed {seed} --only {one.kind} --first {one.number} --trials 1: {ascii(one.words)[1:-1][:400]}")
    for name, about in one.faults[:4]:
        print(f"    {name}: {ascii(about)[1:-1][:400]}", flush=True)


def report(found: list[Found], trials: list[tuple[str, int]], seed: int, seconds: float) -> int:
    """Print one line per kind and the sum; return the exit code."""
    asked, done = Counter(kind for kind, _ in trials), Counter(one.kind for one in found)
    counts = {kind: Counter(one.faults[0][0] for one in found if one.kind == kind and one.faults) for kind in KINDS}
    for kind in filter(asked.get, KINDS):
        faults = ", ".join(f"{name} {counts[kind][name]}" for name in FAULTS if counts[kind][name]) or "nothing"
        print(f"{kind:10} {done[kind]:5} trials: {faults}")
    total = sum((counts[kind] for kind in KINDS), Counter())
    lacking = len(trials) - len(found)
    words = ", ".join(f"{total[name]} {name}" for name in FAULTS)
    missing = f", {lacking} did not run" if lacking else ""
    print(f"{len(found)} trials, seed {seed}, {seconds:.0f} s: {words}{missing}")
    return int(bool(total or lacking))


if __name__ == "__main__":
    sys.exit(main())
