"""Applying and counting on a GPU, beside a copy of the logits: one run, ratios to the copy.

    python benchmarks/gpu.py [--images 8] [--classes 20] [--height 1024] [--width 2048]

Rows are calibrators by a whole call, by their fused kernel alone, by their tensor operations, and by those compiled
with ``torch.compile``; then the count of all tables, beside the tensor operations and torchmetrics where it is
installed. `memory` is the peak beyond the input, in inputs. Logits are smooth, as those of a network are (most blocks
of voxels have one or two winners), or with ``--noise`` independent from voxel to voxel.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from segcal import make_calibrator
from segcal.calibrators import Calibrator
from segcal.calibrators.conic import USUAL
from segcal.kernels import reliability_torch
from segcal.kernels.apply import apply_plan
from segcal.kernels.raw_tables import Layout
from segcal.kernels.reliability import count_voxels

NAMES = ["ts", "vs", "vs_ti", "ms", "ms_c", "dc", "ets", "cdc", "cms_ap", "cms_op", "isotonic", "conic", "conic_class"]


def timed(work: Callable[[], object], repeats: int = 10) -> float:
    """Return the median milliseconds of a piece of work on the device."""
    for _ in range(2):
        work()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin))
    return float(np.median(found))


def peak(work: Callable[[], object], size: int) -> float:
    """Return the peak of memory beyond what is held before, in units of `size` bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / size


def smooth(images: int, classes: int, height: int, width: int, noise: bool) -> Tensor:
    """Return logits: of a coarse field, resampled, with a little noise; or all noise."""
    generator = torch.Generator("cuda").manual_seed(0)
    if noise:
        return 4 * torch.randn(images, classes, height, width, device="cuda", generator=generator)
    coarse = torch.randn(images, classes, height // 64, width // 64, device="cuda", generator=generator)
    field = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return 6 * field + 0.3 * torch.randn(field.shape, device="cuda", generator=generator)


def moved(name: str, classes: int) -> Calibrator:
    """Return a calibrator that is not the identity, without gradients."""
    options = {"contexts": USUAL} if name.startswith("conic") else {}
    calibrator = make_calibrator(name, classes, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.05 * torch.rand(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.requires_grad_(False)
        if name == "isotonic":
            calibrator.get_buffer("used").fill_(1)
    return calibrator.cuda()


def by_operations(calibrator: Calibrator, logits: Tensor) -> Tensor:
    """Return what the tensor operations make of it, normalised."""
    return torch.log_softmax(calibrator.scores(logits), dim=1)


def attempt(work: Callable[[], object], repeats: int = 10) -> float:
    """Return the milliseconds; not a number where it does not run, such as for want of memory."""
    try:
        return timed(work, repeats)
    except Exception as error:  # a peer that fails is a row without a number
        print(f"    ({type(error).__name__}: {str(error).splitlines()[0][:100]})")
        return float("nan")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 8), ("classes", 20), ("height", 1024), ("width", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile of the tensor operations")
    parser.add_argument("--only", nargs="*", default=NAMES)
    given = parser.parse_args()
    logits = smooth(given.images, given.classes, given.height, given.width, given.noise)
    size = logits.numel() * 4
    target = torch.empty_like(logits)
    copy = timed(lambda: target.copy_(logits))
    print(f"{torch.cuda.get_device_name()}: {tuple(logits.shape)} float32, {'noise' if given.noise else 'smooth'}")
    print(f"copy {copy:.3f} ms, {2 * size / copy / 1e9:.2f} TB/s; torch.log_softmax", end=" ")
    print(f"{timed(lambda: torch.log_softmax(logits, 1)) / copy:.2f} copies")
    heads = f"{'apply':12s} {'ms':>8s} {'copies':>7s} {'kernel':>7s} {'in place':>8s} {'memory':>7s}"
    print(f"{heads} {'tensors':>8s} {'compiled':>9s}")
    for name in given.only:
        calibrator = moved(name, given.classes)
        fused = attempt(lambda c=calibrator: c(logits, out=target)) / copy
        plan, around = calibrator.plan(), calibrator.around(logits, None)
        assert plan is not None
        kernel = attempt(lambda p=plan, a=around: apply_plan("triton", p, logits, a, True, target)) / copy
        place = attempt(lambda c=calibrator: c(target, out=target)) / copy
        memory = peak(lambda c=calibrator: c(logits), size)
        operations = attempt(lambda c=calibrator: by_operations(c, logits[:2]), 3) * given.images / 2 / copy
        compiled = float("nan")
        if given.compiled:
            graph = torch.compile(by_operations)
            compiled = attempt(lambda c=calibrator, g=graph: g(c, logits[:2]), 3) * given.images / 2 / copy
        print(
            f"{name:12s} {fused * copy:8.3f} {fused:7.2f} {kernel:7.2f} {place:8.2f} {memory:7.2f} "
            f"{operations:8.1f} {compiled:9.1f}",
            flush=True,
        )
    _count(logits, copy)


def _count(logits: Tensor, copy: float) -> None:
    """Print the rows of counting, image by image."""
    images, classes = logits.shape[:2]
    labels = logits.argmax(1)
    labels[torch.rand(labels.shape, device="cuda") < 0.1] = -1
    layout = Layout(classes, (50, 15), 15)
    rows = {
        "all tables, fused": lambda: [count_voxels(z, y, layout) for z, y in zip(logits, labels, strict=True)],
        "all tables, tensor operations": lambda: reliability_torch.count_voxels(logits[0], labels[0], layout),
    }
    for name, work in rows.items():
        factor = 1 if "fused" in name else images
        print(f"count: {name:32s} {attempt(work, 3) * factor / copy:8.1f} copies")
    whole, y = logits.movedim(1, 0).reshape(classes, -1), labels.reshape(-1)
    print(
        f"count: {'all tables, one call':32s} {attempt(lambda: count_voxels(whole, y, layout), 5) / copy:8.1f} copies"
    )
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError:
        return
    work = lambda: multiclass_calibration_error(logits[:1].softmax(1), labels[:1].clamp(min=0), classes, 15)  # noqa: E731
    print(f"count: {'torchmetrics, ECE alone':32s} {attempt(work, 3) * images / copy:8.1f} copies")


if __name__ == "__main__":
    main()
