"""Libraries that count a calibration error wrong: ``python -m benchmarks.counters [--peers NAME ...] [--rows FOLDER]``.

Every library is given the same block of 65,536 voxels of two classes again and again, until there are as many as in a
volume of a challenge or a batch of street scenes. The error of many blocks is that of one, which is counted here in
float64: what a library reports beyond it is its own. Nine voxels of ten have a
confidence above 0.97, as in a segmentation that is mostly background, and confidence is 0.02 above accuracy.

Prints one line per library and size, then the first number of voxels, doubled from one block, from which a library is
off by more than 1 %. With ``--rows`` it writes the rows of the board. Needs the `peers` extra. Libraries that copy
their whole input in float64 stop at `FEWER` voxels, so that no run takes more than 3 GB.

torch-uncertainty and probmetrics count with torchmetrics. ``benchmarks/patches`` has what would have to change.
"""

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BINS, BLOCK, FEWER = 15, 1 << 16, 17_000_000
SHAPES = {
    "cardiac volume, 10 x 224 x 216": 10 * 224 * 216,
    "street scene, 1024 x 2048": 1024 * 2048,
    "BraTS, 240 x 240 x 155": 240 * 240 * 155,
    "TotalSegmentator at 1.5 mm, 256 x 256 x 256": 256**3,
    "street scenes, 16 x 1024 x 2048": 16 * 1024 * 2048,
    "KiTS, 512 x 512 x 200": 512 * 512 * 200,
}


def block() -> tuple[Tensor, Tensor]:
    """Return probabilities ``(2, BLOCK)`` in float32 and labels."""
    rng = np.random.default_rng(0)
    sure = rng.random(BLOCK) < 0.9
    confidence = np.where(sure, rng.uniform(0.97, 0.9999, BLOCK), rng.uniform(0.52, 0.97, BLOCK)).astype(np.float32)
    predicted = (rng.random(BLOCK) < 0.1).astype(np.int64)
    right = rng.random(BLOCK) < confidence - 0.02
    probs = np.where(predicted == [[0], [1]], confidence, 1 - confidence).astype(np.float32)
    return torch.from_numpy(probs), torch.from_numpy(np.where(right, predicted, 1 - predicted))


def error(score: np.ndarray, hit: np.ndarray) -> float:
    """Return the expected calibration error of scores in bins (lo, hi]."""
    place = np.clip(np.ceil(score.astype(np.float64) * BINS).astype(int), 1, BINS) - 1
    gaps = [(score[place == b].astype(np.float64) - hit[place == b]).sum() for b in range(BINS)]
    return float(np.abs(gaps).sum() / len(score))


def exact(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the error of the predicted class, and the mean over classes of that of each class."""
    p, y = probs.numpy(), labels.numpy()
    each = [error(p[c], y == c) for c in range(2)]
    return {"top": error(p.max(0), p.argmax(0) == y), "class": float(np.mean(each))}


def torchmetrics(probs: Tensor, labels: Tensor, times: int) -> float:
    from torchmetrics.classification import MulticlassCalibrationError

    metric = MulticlassCalibrationError(2, BINS)
    for _ in range(times):
        metric.update(probs.T, labels)
    return float(metric.compute())


def monai(probs: Tensor, labels: Tensor, times: int) -> float:
    from monai.metrics import CalibrationErrorMetric

    hot = torch.stack([labels == 0, labels == 1]).float()
    metric = CalibrationErrorMetric(num_bins=BINS, calibration_reduction="expected")
    return float(metric(probs.repeat(1, times)[None], hot.repeat(1, times)[None]).mean())


def fiducio(probs: Tensor, labels: Tensor, times: int) -> float:
    from fiducio.metrics import expected_calibration_error

    return expected_calibration_error(probs.repeat(1, times)[None], labels.repeat(times)[None], n_bins=BINS)


def netcal(probs: Tensor, labels: Tensor, times: int) -> float:
    from netcal.metrics import ECE

    return float(ECE(BINS).measure(probs.T.repeat(times, 1).numpy(), labels.repeat(times).numpy()))


def segcal(probs: Tensor, labels: Tensor, times: int) -> float:
    from segcal.metrics import METRICS
    from segcal.statistics import count_logits

    one = count_logits(probs.log(), labels, bins=(BINS,)).tables
    total = one
    for _ in range(times - 1):
        total = total + one
    return METRICS["ece"].with_bins(BINS)(total) or 0.0


Counter = Callable[[Tensor, Tensor, int], float]
PEERS: dict[str, tuple[Counter, str, int | None]] = {
    "segcal": (segcal, "top", None),
    "torchmetrics": (torchmetrics, "top", None),
    "MONAI, class-wise": (monai, "class", None),
    "fiducio": (fiducio, "top", FEWER),
    "netcal, class-wise": (netcal, "class", FEWER),
}


def main() -> None:
    """Print what every library reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="NAME")
    parser.add_argument("--rows", type=Path, metavar="FOLDER", help="the folder of the board to write rows to")
    given = parser.parse_args()
    probs, labels = block()
    truth, found = exact(probs, labels), []
    for shape, size in SHAPES.items():
        times = size // BLOCK
        for name in given.peers:
            count, kind, most = PEERS[name]
            if most is not None and size > most:
                continue
            reported = count(probs, labels, times)
            off = reported / truth[kind] - 1
            print(f"{shape:44} {name:18} {reported:.5f}  exact {truth[kind]:.5f}  {off:+.1%}", flush=True)
            found.append((shape, name, reported, truth[kind], off))
            gc.collect()
    first = {name: first_off(name, probs, labels, truth) for name in given.peers}
    for name, size in first.items():
        print(f"{name:18} off by 1 % from {size:,} voxels" if size else f"{name:18} never off by 1 %")
    if given.rows is not None:
        write(found, first, given.rows)


def first_off(name: str, probs: Tensor, labels: Tensor, truth: dict[str, float]) -> int | None:
    """Return from how many voxels, doubled up to `FEWER`, a library is off by more than 1 %."""
    count, kind, _ = PEERS[name]
    for times in (1 << k for k in range(9)):
        if times * BLOCK < FEWER and abs(count(probs, labels, times) / truth[kind] - 1) > 0.01:
            return times * BLOCK
    return None


def write(found: list[tuple[str, str, float, float, float]], first: dict[str, int | None], folder: Path) -> None:
    """Write the rows of the board."""
    from paper.board import Row, number, write_code, write_rows
    from paper.stamp import code_digest
    from segcal.version import __version__

    rows = []
    for shape, name, reported, true, off in found:
        rows.append(Row(shape, name, "ECE reported", number(reported, ".5f")))
        rows.append(Row(shape, name, "ECE exact", number(true, ".5f")))
        rows.append(Row(shape, name, "error, %", number(100 * off, ".2f")))
    for name, size in first.items():
        note = "" if size else f"none up to {FEWER:,}"
        rows.append(Row("first number of voxels off by 1 %", name, "voxels", number(size, "d"), note=note))
    write_rows("counters", rows, folder)
    write_code("counters", f"segcal {__version__}, code {code_digest()}", folder)


if __name__ == "__main__":
    main()
