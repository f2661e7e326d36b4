"""Applying calibrators on the CPU, beside a copy of the logits and `torch.log_softmax`: one run, ratios.

    python -m benchmarks.apply [--classes 20] [--height 512] [--width 1024] [--threads 2]

Columns: multiples of a copy and of ``torch.log_softmax`` for the fused loops, the same for the tensor operations that
they replace, and, with ``--noise``, logits that are independent from voxel to voxel, the worst case of maps by winner.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from segcal import make_calibrator
from segcal.calibrators import Calibrator
from segcal.calibrators.conic import USUAL

NAMES = ["ts", "vs", "ms", "dc", "ets", "cdc", "cms_ap", "cms_op", "isotonic", "conic", "conic_class"]


def timed(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the shortest time of a piece of work, which other processes disturb least."""
    work()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


def smooth(classes: int, height: int, width: int, noise: bool) -> Tensor:
    """Return the logits of one image."""
    generator = torch.Generator().manual_seed(0)
    if noise:
        return 4 * torch.randn(1, classes, height, width, generator=generator)
    coarse = torch.randn(1, classes, height // 64, width // 64, generator=generator)
    field = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return 6 * field + 0.3 * torch.randn(field.shape, generator=generator)


def moved(name: str, classes: int) -> Calibrator:
    """Return a calibrator that is not the identity, without gradients."""
    calibrator = make_calibrator(name, classes, **({"contexts": USUAL} if name.startswith("conic") else {}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.05 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.requires_grad_(False)
        if name == "isotonic":
            calibrator.get_buffer("used").fill_(1)
    return calibrator


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("classes", 20), ("height", 512), ("width", 1024), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logits = smooth(given.classes, given.height, given.width, given.noise)
    place = torch.empty_like(logits)
    copy, softmax = timed(lambda: place.copy_(logits)), timed(lambda: torch.log_softmax(logits, 1))
    size = " x ".join(map(str, logits.shape[1:]))
    kind = "noise" if given.noise else "smooth"
    print(f"{size} float32, {given.threads} threads, {kind}: a copy takes {1e3 * copy:.1f} ms, `torch.log_softmax`")
    print(f"{1e3 * softmax:.1f} ms. Columns are multiples of either.\n")
    print("| | ms | copies | softmaxes | tensor operations, softmaxes |\n| --- | ---: | ---: | ---: | ---: |")
    for name in NAMES:
        calibrator = moved(name, given.classes)
        fused = timed(lambda c=calibrator: c(logits, out=place))
        plain = timed(lambda c=calibrator: torch.log_softmax(c.scores(logits), 1), 1)
        ratios = f"{fused / copy:.1f} | {fused / softmax:.1f} | {plain / softmax:.1f}"
        print(f"| `{name}` | {1e3 * fused:.1f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
