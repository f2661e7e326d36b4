"""Measure what many cases cost: the start, parts and merge by the number of cases, two workers beside one, a year.

    python -m benchmarks.scale start
    python -m benchmarks.scale parts [--cases 10,100,1000,10000]
    python -m benchmarks.scale workers [--cases 40,160,400] [--side 1024]
    python -m benchmarks.scale year [--cases 126000] [--parts 126]
    python -m benchmarks.scale same [--cases 14] [--data PREDICTIONS LABELS]

Wall time is that of the machine as it is: run `workers` where two cores are free. CPU time, which includes all
processes that were started, says what the work costs on a machine that others use too. Every row is a fresh process
that may use one thread. `workers` measures two numbers of cases (the first and the last; with Dask, the first and the
second): what both have in common is the start, which more cases do not make longer, and the rest is the cost of a case,
which is what two workers share. `same`
compares the bytes of an evaluation in 1, 2 and 7 parts, done in different orders, one of them killed and run again, and
by Dask with 1, 2 and 4 workers and with a worker killed on the way, with those of one process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import segcal
from segcal.cases.base import Case, Cases
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.evaluate import DEFAULT_METRICS, _choose, _measure
from segcal.scale.part import Part

CLASSES = 3
# Cases that are made; the others are copies of them.
DISTINCT = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["start", "parts", "workers", "year", "merge-year", "same"])
    parser.add_argument("--cases", default=None)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--parts", type=int, default=126)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--data", nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segcal-scale-") as place:
        folder = args.folder or Path(place)
        if args.what == "start":
            start(folder)
        elif args.what == "parts":
            parts([int(text) for text in (args.cases or "10,100,1000,10000").split(",")], folder)
        elif args.what == "workers":
            workers([int(text) for text in (args.cases or "40,160,400").split(",")], args.side, folder)
        elif args.what == "same":
            same(int(args.cases or 14), folder, args.data)
        elif args.what == "year":
            year(int(args.cases or 126_000), args.parts, folder)
        else:
            merge_year(int(args.cases or 126_000), folder)


def make_cases(folder: Path, number: int, side: int) -> list[str]:
    rng = np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (folder / name).mkdir(parents=True)
    made = []
    for index in range(min(number, DISTINCT)):
        scores = (3 * rng.normal(size=(CLASSES, side, side + index % 3))).astype(np.float16)
        made.append((scores, (scores / 2 + rng.gumbel(size=scores.shape)).argmax(0).astype(np.uint8)))
    for index in range(number):
        scores, labels = made[index % DISTINCT]
        np.save(folder / "predictions" / f"case{index:06}.npy", scores)
        np.save(folder / "labels" / f"case{index:06}.npy", labels)
    return inputs(folder)


def timed(command: list[str]) -> dict[str, float]:
    """Run a command; return wall and CPU seconds and the largest memory of its processes, in MB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    watched = [sys.executable, "-c", WATCH, *command]
    done = subprocess.run(watched, capture_output=True, text=True, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - start, "cpu": cpu, "memory": float(done.stderr.split()[-1])}


# Runs a command, waits for all that it started, whoever ends first, and says on stderr how much memory the largest of
# its processes had, in MB.
WATCH = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what a process leaves is ours
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
try:
    while os.wait():
        pass
except ChildProcessError:
    pass
sys.stderr.write(done.stderr) if done.returncode not in (0, 3) else None
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, file=sys.stderr)
sys.exit(done.returncode if done.returncode not in (0, 3) else 0)
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-c", "import segcal_command; segcal_command.main()", *map(str, words)]


def parts(numbers: list[int], folder: Path) -> None:
    print("| cases | part: wall s | CPU s | MB | merge: wall s | CPU s | MB |\n|---:|---:|---:|---:|---:|---:|---:|")
    for number in numbers:
        place = folder / str(number)
        both = make_cases(place, number, 24)
        segments = ["-o", place / "part", "--num-parts", 1, "--part-id", 0]
        one = timed(command("evaluate", *both, *segments))
        two = timed(command("merge", place / "part", "-o", place / "merged", "--", "evaluate", *both))
        cells = [
            f"{each[key]:.{digits}f}" for each in (one, two) for key, digits in (("wall", 1), ("cpu", 1), ("memory", 0))
        ]
        print(f"| {number:,} | {' | '.join(cells)} |", flush=True)


def start(folder: Path) -> None:
    both = make_cases(folder, 1, 24)
    rows = {
        "import torch": [sys.executable, "-c", "import gc; gc.disable(); import torch"],
        "import torch, numba": [sys.executable, "-c", "import gc; gc.disable(); import torch, numba"],
        "segcal evaluate, one tiny case": command("evaluate", *both, "--num-parts", 1, "--part-id", 0, "-o"),
    }
    print("| a fresh process | CPU s, least of five | beyond torch |\n|---|---:|---:|")
    least = {title: float("inf") for title in rows}
    for number in range(6):  # the first one compiles
        for title, words in rows.items():
            own = [*words, str(folder / f"part{number}")] if words[-1] == "-o" else words
            least[title] = min(least[title], timed(own)["cpu"] if number else float("inf"))
    for title, value in least.items():
        print(f"| {title} | {value:.2f} | {value - least['import torch']:.2f} |")


Timed = dict[str, float]
FIT = ["--calibrator", "ts", "--trust-on", "none", "--voxels", "all"]


def workers(numbers: list[int], side: int, folder: Path) -> None:
    few, some, many = numbers
    make_cases(folder / str(many), many, side)
    for number in (few, some):
        linked(folder / str(many), folder / str(number), number)
    warm = command("evaluate", *inputs(folder / str(few)), "--engine", "dask", "-o", folder / "first")
    timed(warm)  # compiles, and reads the libraries
    ratios = [
        beside(title, engine, [few, most], folder)
        for engine, most in (("local", many), ("dask", some))
        for title in ("evaluate", "fit")
    ]
    print("\n| two workers beside one | few | many | a case more | CPU of many | CPU of a case | the same bytes |")
    print("|---|---:|---:|---:|---:|---:|---|\n" + "\n".join(ratios))


def beside(title: str, engine: str, numbers: list[int], folder: Path) -> str:
    """Print a table of a command with one and with two workers; return the row of ratios."""
    few, many = numbers
    heads = [f"{few}: wall s", "CPU s", f"{many}: wall s", "CPU s", "MB", "start: wall s", "CPU s", "a case: wall ms"]
    print(f"\n| {title}, {engine} | {' | '.join(heads)} | CPU ms |\n|---|{'---:|' * (len(heads) + 1)}")
    found: list[tuple[Timed, Timed, Timed]] = []
    made = []
    for count in (1, 2):
        runs = []
        for number in numbers:
            out = folder / f"{title}-{number}-{engine}-{count}"
            words = [title, *inputs(folder / str(number)), *(FIT if title == "fit" else [])]
            runs.append(timed(command(*words, "-o", out, "--engine", engine, "--workers", count)))
            made.append(contents(out))
        each = {key: (runs[1][key] - runs[0][key]) / (many - few) for key in ("wall", "cpu")}
        found.append((runs[0], runs[1], each))
        cells = [f"{run[key]:.1f}" for run in runs for key in ("wall", "cpu")] + [f"{runs[1]['memory']:.0f}"]
        cells += [f"{runs[0][key] - few * each[key]:.1f}" for key in ("wall", "cpu")]
        cells += [f"{1e3 * each[key]:.0f}" for key in ("wall", "cpu")]
        print(f"| {count} worker{'s' if count > 1 else ''} | {' | '.join(cells)} |", flush=True)
    one, two = found
    ratios = [f"{a['wall'] / b['wall']:.2f} x" for a, b in zip(one, two, strict=True)]
    ratios += [f"{two[number]['cpu'] / one[number]['cpu']:.2f}" for number in (1, 2)]
    alike = made[:2] == made[2:] and (engine == "local" or made[0] == contents(folder / f"{title}-{few}-local-1"))
    return f"| {title}, {engine}, {few} and {many} cases | {' | '.join(ratios)} | {'yes' if alike else 'NO'} |"


def linked(source: Path, target: Path, number: int) -> None:
    """Make a folder of the first cases of another."""
    for name in ("predictions", "labels"):
        (target / name).mkdir(parents=True)
        for path in sorted((source / name).iterdir())[:number]:
            (target / name / path.name).hardlink_to(path)


def inputs(folder: Path) -> list[str]:
    return [str(folder / "predictions"), str(folder / "labels"), "--kind", "logits"]


def same(number: int, folder: Path, data: list[str] | None) -> None:
    words = ["evaluate", *(data or make_cases(folder / "s", number, 200))]
    subprocess.run(command(*words, "-o", folder / "one"), check=True, stdout=subprocess.DEVNULL)
    expected = contents(folder / "one")
    for of in (1, 2, 7):
        made = []
        for part_id in sorted(range(of), key=lambda value: (value * 5) % 7):
            made.append(folder / f"part{part_id}-of-{of}")
            whole = command(*words, "-o", made[-1], "--num-parts", of, "--part-id", part_id)
            if part_id == of - 1:
                killed_after(whole, 4.0)
            subprocess.run(whole, check=True, stdout=subprocess.DEVNULL)
        target = folder / f"merged-{of}"
        subprocess.run(command("merge", *made, "-o", target, "--", *words), check=True, stdout=subprocess.DEVNULL)
        print(f"{of} parts, the last one killed and run again: {contents(target) == expected}", flush=True)
    for count, kill in ((1, False), (2, False), (4, False), (2, True)):
        target = folder / f"dask-{count}-{kill}"
        engine = command(*words, "-o", target, "--engine", "dask", "--workers", count)
        running = subprocess.Popen(engine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lost = kill_worker(running) if kill else 0
        assert running.wait() == 0
        print(f"dask, {count} workers, {lost} killed: {contents(target) == expected}", flush=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def killed_after(words: list[str], seconds: float) -> None:
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def kill_worker(running: subprocess.Popen[bytes]) -> int:
    """Kill one of the workers of a run as soon as it has results; return how many were killed."""
    while running.poll() is None:
        others = psutil.Process(running.pid).children(recursive=True)
        forks = [each for each in others if all("forkserver" in str(one.cmdline()) for one in (each, each.parent()))]
        busy = [each for each in forks if each.cpu_times().user > 0.2]  # beyond its start
        if busy:
            busy[0].kill()
            return 1
        time.sleep(0.05)
    return 0


class Listed(Cases):
    """Cases that are known by name only."""

    def read(self, case_id: str) -> Case:
        """Refuse."""
        raise AssertionError("nothing is read")

    def identity(self, case_id: str) -> str:
        """Return the name."""
        return case_id


def listed(number: int) -> Listed:
    return Listed([f"case{index:06}" for index in range(number)], CLASSES, "logits", "single")


class Recycled:
    """Results of a few cases, again and again under other names."""

    def __init__(self, results: list[object]) -> None:
        self._results = results

    def __call__(self, case_id: str) -> tuple[object, None]:
        """Return a result."""
        return self._results[int(case_id[4:]) % len(self._results)], None


def year(number: int, of: int, folder: Path) -> None:
    cases, few = listed(number), folder / "few"
    both = make_cases(few, 50, 60)
    opened, calibrator = segcal.open_cases(both[0], both[1], kind="logits"), segcal.make_calibrator("ts", CLASSES)
    start, counter = time.perf_counter(), Counter(_choose(None, True, DEFAULT_METRICS))
    results: list[object] = [_measure(counter, calibrator, case) for case in opened]
    for part_id in range(of):
        with Part(folder / "parts" / f"{part_id:04}", [cases], part_id, of) as part:
            for _, outcome in part.outcomes(cases.ids, Recycled(results), "_measure single"):
                outcome()
    size = sum(path.stat().st_size for path in (folder / "parts").rglob("*.results"))
    print(f"{number:,} cases in {of} parts, {size / 1e6:.0f} MB, written in {time.perf_counter() - start:.0f} s")
    again = [sys.executable, "-m", "benchmarks.scale", "merge-year", "--cases", str(number), "--folder", str(folder)]
    found = timed(again)
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


def merge_year(number: int, folder: Path) -> None:
    cases = listed(number)
    merged = segcal.merge(sorted((folder / "parts").iterdir()), cases)
    result = segcal.evaluate(cases, segcal.make_calibrator("ts", CLASSES), workers=merged)
    result.to_csv(folder / "cases.csv")
    assert len(result.rows) == 2 * number


if __name__ == "__main__":
    main()
