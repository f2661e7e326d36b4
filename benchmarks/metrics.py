"""Speed, memory and correctness of the calibration metrics, beside what a user would pick instead.

Run ``python -m benchmarks.metrics``. Needs the `peers` extra. Every library sees the same map; times are the best of
several rounds in which all libraries take turns, and are printed as ratios. Peak memory is measured in a process of
its own.
"""

import argparse
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage

from segcal.kernels.distance_numba import squared_distances
from segcal.statistics import count_logits

SHAPES = {"20 x 1024 x 2048": (20, 1024, 2048), "5 x 155 x 240 x 240": (5, 155, 240, 240)}
BINS, CLASS_BINS = 50, 15


def make_map(num_classes: int, *space: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels that look like a segmentation: smooth regions, mostly certain, errors at borders."""
    rng = np.random.default_rng(0)
    coarse = tuple(max(4, size // 48) for size in space)
    generator = torch.Generator().manual_seed(0)
    mode = "bilinear" if len(space) == 2 else "trilinear"
    field = torch.from_numpy(rng.normal(size=(1, num_classes, *coarse)).astype(np.float32))
    logits = torch.nn.functional.interpolate(field, size=space, mode=mode)[0] * 12
    noisy = logits + torch.randn(logits.shape, generator=generator)
    return logits, noisy.argmax(0)


def best_times(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def make_runs(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], object]]:
    from fiducio.metrics import expected_calibration_error
    from monai.metrics import CalibrationErrorMetric
    from netcal.metrics import ECE
    from torchmetrics.functional.classification import multiclass_calibration_error

    num_classes = len(logits)
    hot = torch.nn.functional.one_hot(labels, num_classes).movedim(-1, 0)[None]
    truth = labels.reshape(-1).numpy()

    def probs() -> torch.Tensor:
        return torch.softmax(logits, 0)

    return {
        "segcal, everything": lambda: count_logits(logits, labels, (BINS, 15), CLASS_BINS),
        "segcal, class-wise ECE": lambda: count_logits(logits, labels, (CLASS_BINS,), CLASS_BINS),
        "segcal, ECE": lambda: count_logits(logits, labels, (BINS,), 0),
        "torchmetrics ECE": lambda: multiclass_calibration_error(logits[None], labels[None], num_classes, n_bins=BINS),
        "netcal ECE": lambda: ECE(BINS).measure(probs().reshape(num_classes, -1).T.numpy(), truth),
        "fiducio ECE": lambda: expected_calibration_error(probs()[None], labels[None], n_bins=BINS),
        "MONAI class-wise ECE": lambda: CalibrationErrorMetric(num_bins=CLASS_BINS)(probs()[None], hot),
        "torch.softmax alone": probs,
    }


def print_speed(rounds: int) -> None:
    print(f"Speed, best of {rounds} rounds, {torch.get_num_threads()} threads")
    print("All start from logits; what a library needs to get probabilities is part of its time.\n")
    for title, shape in SHAPES.items():
        times = best_times(make_runs(*make_map(*shape)), rounds)
        print(f"| {title} float32 | ms | slower than segcal's everything | its class-wise ECE | its ECE |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, seconds in times.items():
            ratios = [seconds / times[f"segcal, {what}"] for what in ("everything", "class-wise ECE", "ECE")]
            print(f"| {name} | {1e3 * seconds:.0f} |" + "".join(f" {ratio:.1f} x |" for ratio in ratios))
        print(flush=True)


def print_memory() -> None:
    print("Peak memory beyond the input, one pass with NLL, reliability, confusion and class-wise tables\n")
    print("| map | input MB | beyond it MB | share |")
    print("| --- | ---: | ---: | ---: |")
    for title in SHAPES:
        for dtype in ("float32", "float16"):
            run = [sys.executable, "-m", "benchmarks.metrics", "--measure", title, dtype]
            size, peak = map(float, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
            print(f"| {title} {dtype} | {size / 1e6:.0f} | {peak / 1e6:.1f} | {100 * peak / size:.1f} % |")
    print(flush=True)


def measure_memory(title: str, dtype: str) -> None:
    """Print the size of the input and how much the peak of this process grows by counting it."""
    shape = SHAPES[title]
    count_logits(torch.zeros(shape[0], 9, dtype=getattr(torch, dtype)), torch.zeros(9).long())  # load compiled loops
    logits = torch.full(shape, 0.5, dtype=getattr(torch, dtype))  # written, so that its pages are really there
    logits[0] = 3.0
    labels = torch.full(shape[1:], 1)
    before = peak_memory()
    count_logits(logits, labels)
    print(logits.numel() * logits.element_size(), peak_memory() - before)


def peak_memory() -> int:
    """Return the largest memory of this process so far (Linux; getrusage would inherit the parent's peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def print_large_counts() -> None:
    """Print the ECE of 40 million voxels of one confidence, one in eight of them wrong."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    voxels = 40_000_000
    logits = torch.tensor([[4.0], [0.0]]).expand(2, voxels).contiguous()
    labels = (torch.arange(voxels) % 8 == 0).long()
    exact = abs(0.875 - 1 / (1 + math.exp(-4.0)))
    tables = count_logits(logits, labels).tables
    curve = tables.reliability[BINS]["all"]
    ours = abs(curve.right - curve.confidence).sum() / curve.count.sum()
    probs = torch.softmax(logits, 0)
    theirs = float(multiclass_calibration_error(probs[None], labels[None], 2, n_bins=BINS))
    print("40 million voxels in one bin\n")
    print("| | voxels in the bin | ECE |")
    print("| --- | ---: | ---: |")
    print(f"| exact | {voxels} | {exact:.6f} |")
    print(f"| segcal | {curve.count.max()} | {ours:.6f} |")
    print(f"| torchmetrics | (float32 counter) | {theirs:.6f} |")
    print(flush=True)


def print_distances() -> None:
    print("\nDistance to the nearest boundary\n")
    print("| map | scipy ms | segcal ms | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for title, shape in SHAPES.items():
        labels = make_map(2, *shape[1:])[1].numpy()
        away = ndimage.gaussian_filter(labels.astype(np.float32), 1) > 0.5
        away = ~(away ^ ndimage.binary_erosion(away))
        runs = {
            "scipy": lambda a=away: ndimage.distance_transform_edt(a),
            "segcal": lambda a=away: squared_distances(~a),
        }
        times = best_times(runs, 2)
        ratio = times["scipy"] / times["segcal"]
        slow, fast = 1e3 * times["scipy"], 1e3 * times["segcal"]
        print(f"| {title[title.index('x') + 2 :]} | {slow:.0f} | {fast:.0f} | {ratio:.1f} x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("MAP", "DTYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_memory(*arguments.measure)
        return
    warnings.filterwarnings("ignore")
    print_speed(arguments.rounds)
    print_memory()
    print_large_counts()
    print_distances()


if __name__ == "__main__":
    main()
