"""Cost of each loss relative to plain cross-entropy, forward and backward, with MONAI's NACLLoss beside ours.

Run ``python -m benchmarks.losses [--device cuda]``. Needs the `peers` extra. Every loss sees the same batch; times are
the medians of rounds in which all losses take turns, and are printed as ratios. Memory is what a forward and backward
pass needs at its peak beyond logits and labels, on the CPU in a process of its own for each loss.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from segcal.losses import LOSSES, make_loss

SHAPES = {"16 x 4 x 224 x 224": (16, 4, 224, 224), "2 x 5 x 96 x 96 x 96": (2, 5, 96, 96, 96)}
PLAIN, OURS, THEIRS = "ce", "nacl", "MONAI NACLLoss"
EXTRA = {"nacl gaussian": ("nacl", {"prior": "gaussian"}), "nacl as monai": ("nacl", {"parity": "monai"})}


def make_losses(shape: tuple[int, ...], device: str) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch CE": torch.nn.CrossEntropyLoss()}
    found |= {name: make_loss(name) for name in LOSSES}
    found |= {title: make_loss(name, **options) for title, (name, options) in EXTRA.items()}
    try:
        from monai.losses import NACLLoss

        theirs = NACLLoss(classes=shape[1], dim=len(shape) - 2)
        found[THEIRS] = theirs.to(device)
    except ImportError:
        print("MONAI is not installed: ours alone")
    return found


def make_batch(shape: tuple[int, ...], device: str) -> tuple[Tensor, Tensor]:
    """Return logits and labels of blocks, as regions are: borders are few."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, shape[1], (shape[0], 1, *(size // 16 for size in shape[2:])), generator=generator)
    labels = torch.nn.functional.interpolate(coarse.float(), size=shape[2:], mode="nearest")[:, 0].long()
    return torch.randn(shape, generator=generator).to(device).requires_grad_(), labels.to(device)


def step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> None:
    logits.grad = None
    loss(logits, labels).backward()


def measure_time(shape: tuple[int, ...], device: str, rounds: int) -> dict[str, float]:
    losses, batch = make_losses(shape, device), make_batch(shape, device)
    times: dict[str, list[float]] = {name: [] for name in losses}
    for number in range(rounds + 2):
        for name, loss in losses.items():
            _wait(device)
            started = time.perf_counter()
            step(loss, *batch)
            _wait(device)
            if number >= 2:  # the first rounds load and choose kernels
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(own) for name, own in times.items()}


def measure_memory(name: str, shape: tuple[int, ...], device: str) -> float:
    """Return the peak of one pass in MiB, from the device's own counter or from that of a process of its own."""
    if device != "cpu":
        loss, batch = make_losses(shape, device)[name], make_batch(shape, device)
        step(loss, *batch)
        batch[0].grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, *batch)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Freed memory goes back at once, so that the size of the process is what is in use.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    arguments = [sys.executable, "-m", "benchmarks.losses", "--one", name, *map(str, shape)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_here(name: str, shape: tuple[int, ...]) -> float:
    loss, batch = make_losses(shape, "cpu")[name], make_batch(shape, "cpu")
    step(loss, *batch)
    batch[0].grad = None
    Path("/proc/self/clear_refs").write_text("5")  # the kernel forgets the largest size so far
    before = _process_size("VmRSS")
    step(loss, *batch)
    return (_process_size("VmHWM") - before) / 1024


def _process_size(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(measure_here(options.one[0], tuple(map(int, options.one[1:]))))
        return
    missed = []
    for title, shape in SHAPES.items():
        times = measure_time(shape, options.device, options.rounds)
        memory = {name: measure_memory(name, shape, options.device) for name in times}
        print(f"\n## {title}, float32, {options.device}, {torch.get_num_threads()} threads")
        print(f"{'loss':18}{'ms':>9}{'x CE':>8}{'MiB':>9}{'x CE':>8}")
        for name in times:
            relative = times[name] / times[PLAIN], memory[name] / memory[PLAIN]
            print(f"{name:18}{1e3 * times[name]:9.2f}{relative[0]:8.2f}{memory[name]:9.1f}{relative[1]:8.2f}")
        if THEIRS in times:
            for what, own in (("time", times), ("memory", memory)):
                good = own[OURS] <= own[THEIRS]
                missed += [] if good else [f"{title}: {what}"]
                print(f"{what}: {own[OURS] / own[THEIRS]:.2f} of MONAI's, {'ok' if good else 'MISSED'}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
