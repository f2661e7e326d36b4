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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import torch

import segcal
from peers import FIDUCIO
from voxels import draw

CALIBRATORS = ("ts", "dc", "cms_op")
MILLIONS = {"segcal": (1, 4, 8, 16), "fiducio": (1, 4)}
TILE = 500_000
SECONDS = 60.0


def measure_memory(predictions: Path, data: Path) -> list[tuple[bool, str]]:
    """Print the table and return the floors."""
    jobs = [(who, name, size) for name in CALIBRATORS for who, sizes in MILLIONS.items() for size in sizes]
    with ThreadPoolExecutor(2) as pool:
        peaks = dict(zip(jobs, pool.map(lambda job: _in_process(predictions, data, *job), jobs), strict=True))
    print("\n## peak memory above the voxels, MiB (camvid, repeated; * stopped at the time limit)")
    print(f"{'':16}" + "".join(f"{size:>9} M" for size in MILLIONS["segcal"]))
    for name in CALIBRATORS:
        for who, sizes in MILLIONS.items():
            cells = [f"{peaks[who, name, size][0]:.0f}{'*' if peaks[who, name, size][1] else ''}" for size in sizes]
            print(f"{name:7}{who:9}" + "".join(f"{cell:>11}" for cell in cells))
    floors = []
    for name in CALIBRATORS:
        own, other = peaks["segcal", name, 4][0], peaks["fiducio", name, 4][0]
        floors.append((own < other / 4, f"{name}: {own:.0f} MiB at 4 M voxels, fiducio {other:.0f}; a quarter needed"))
        most = peaks["segcal", name, 16][0]
        floors.append((most < 1.1 * own + 16, f"{name}: {own:.0f} MiB at 4 M and {most:.0f} at 16 M voxels; flat"))
    return floors


def _in_process(predictions: Path, data: Path, who: str, name: str, millions: int) -> tuple[float, bool]:
    arguments = [str(predictions), str(data), who, name, str(millions)]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{who} {name} {millions} M: {done.stderr.strip().splitlines()[-1]}")
        return float("nan"), True
    peak, stopped = done.stdout.split()[-2:]
    return float(peak), stopped == "True"


def main(predictions: str, data: str, who: str, name: str, millions: str) -> None:
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
    peak, stopped = _peak(fit)
    print(peak / 2**20, stopped, flush=True)
    os._exit(0)  # a fit that was stopped still runs in its thread


def _peak(fit: Callable[[], object]) -> tuple[int, bool]:
    """Run in a thread, watch the size of the process, and return its growth."""
    process = psutil.Process()
    start = process.memory_info().rss
    worker = threading.Thread(target=fit, daemon=True)
    worker.start()
    peak, deadline = start, time.perf_counter() + SECONDS
    while worker.is_alive() and time.perf_counter() < deadline:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.002)
    return peak - start, worker.is_alive()


if __name__ == "__main__":
    main(*sys.argv[1:])
