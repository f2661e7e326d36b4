"""Peak memory of a fit, each in a process of its own: ours with all voxels, beside fiducio.

The voxels of camvid are repeated to the size asked for. What is counted is the growth of the process from the moment
when the voxels are in memory and the libraries are loaded. A fit is stopped after a while; its memory has then gone
through all its stages (reading, sampling, passes) many times over, or the table says that it was stopped.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import torch

import segcal
from benchmarks.peers import FIDUCIO
from benchmarks.voxels import draw

CALIBRATORS = ("ts", "dc", "cms_op")
# Fiducio holds all voxels at once: beyond so many millions it is not tried.
MOST_FIDUCIO = 4
TILE = 500_000


def measure_memory(predictions: Path, data: Path, millions: Sequence[int], seconds: float) -> list[tuple[bool, str]]:
    """Print the table and return the floors."""
    sizes = {"segcal": list(millions), "fiducio": [size for size in millions if size <= MOST_FIDUCIO]}
    jobs = [(who, name, size) for name in CALIBRATORS for who, own in sizes.items() for size in own]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda job: _in_process(predictions, data, *job, seconds), jobs)
        peaks = dict(zip(jobs, found, strict=True))
    print(f"| MiB above the voxels (* stopped after {seconds:g} s) |" + "".join(f" {size} M |" for size in millions))
    print("| --- |" + " ---: |" * len(millions))
    for name in CALIBRATORS:
        for who in sizes:
            known = [peaks.get((who, name, size)) for size in millions]
            cells = ["" if one is None else f"{one[0]:.0f}{'*' if one[1] else ''}" for one in known]
            print(f"| {name}: {who} | {' | '.join(cells)} |")
    print()
    floors = []
    for name in CALIBRATORS:
        size, last = max(sizes["fiducio"]), max(millions)
        own, other, most = (
            peaks["segcal", name, size][0],
            peaks["fiducio", name, size][0],
            peaks["segcal", name, last][0],
        )
        floors.append((own < other / 4, f"{name}: {own:.0f} MiB at {size} M, fiducio {other:.0f}; a quarter needed"))
        floors.append((most < 1.1 * own + 16, f"{name}: {own:.0f} MiB at {size} M and {most:.0f} at {last} M; flat"))
    return floors


def _in_process(
    predictions: Path, data: Path, who: str, name: str, millions: int, seconds: float
) -> tuple[float, bool]:
    arguments = [str(predictions), str(data), who, name, str(millions), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{who} {name} {millions} M: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return float("nan"), True
    peak, stopped = done.stdout.split()[-2:]
    return float(peak), stopped == "True"


def main(predictions: str, data: str, who: str, name: str, millions: str, seconds: str) -> None:
    """Make one fit and print its peak memory in MiB, and whether it was stopped."""
    tile, _ = draw(Path(predictions), Path(data), "camvid", (TILE, 1))
    copies = int(millions) * 1_000_000 // TILE
    fit: Callable[[], object]
    if who == "segcal":
        cases = segcal.ArrayCases(logits=[tile.logits] * copies, labels=[tile.labels] * copies)
        config = segcal.FitConfig(lam=0.0, mu=0.0, voxels="all")
        few = segcal.ArrayCases(logits=[tile.logits[:, :2000]], labels=[tile.labels[:2000]])
        segcal.fit(name, few, config=config)
        fit = lambda: segcal.fit(name, cases, config=config)  # noqa: E731
    else:
        import fiducio

        logits = torch.from_numpy(np.tile(tile.logits, copies)[None])
        labels = torch.from_numpy(np.tile(tile.labels, copies)[None])
        calibrator = getattr(fiducio, FIDUCIO[name])
        calibrator(optimizer="lbfgs").fit(logits[..., :2000], labels[..., :2000])
        fit = lambda: calibrator(optimizer="lbfgs").fit(logits, labels)  # noqa: E731
    peak, stopped = _peak(fit, float(seconds))
    print(peak / 2**20, stopped, flush=True)
    os._exit(0)  # a fit that was stopped still runs in its thread


def _peak(fit: Callable[[], object], seconds: float) -> tuple[int, bool]:
    """Run in a thread, watch the size of the process, and return its growth."""
    process = psutil.Process()
    start = process.memory_info().rss
    worker = threading.Thread(target=fit, daemon=True)
    worker.start()
    peak, deadline = start, time.perf_counter() + seconds
    while worker.is_alive() and time.perf_counter() < deadline:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.002)
    return peak - start, worker.is_alive()


if __name__ == "__main__":
    main(*sys.argv[1:])
