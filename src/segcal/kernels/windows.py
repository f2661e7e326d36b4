"""Contexts of conic scaling: gaps to the runner-up, and means and shares in windows of a plane.

Let d be the distance from the winner to the next class, at most a limit. The numbers are the mean of d in a window, and
the share of its voxels that have the voxel's own class. Beyond the border there is nothing. Sums are float64 (of a CUDA
device float32 between columns and rows), counts exact. The CPU has compiled loops, of sums and counts that slide along
with the voxel, a CUDA device kernels of Triton. Nothing of it has a gradient.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.apply import MOST_IMAGES, as_images, has_triton, is_followed
from segcal.kernels.loops import compiled, in_parts, in_threads


def serves(logits: Tensor) -> bool:
    """Return whether there are fused passes for these logits."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_followed(logits):
        return False
    if logits.requires_grad and torch.is_grad_enabled():
        return False
    if logits.device.type == "cpu":
        return True
    return logits.is_cuda and logits.dtype == torch.float32 and _fits_kernels(logits.shape) and has_triton()


def _fits_kernels(shape: Sequence[int]) -> bool:
    """Return whether rows and planes of logits of this shape are few enough for a grid, and planes small enough.

    >>> _fits_kernels((2, 19, 1024, 2048)), _fits_kernels((1, 2, 70_000, 5)), _fits_kernels((1, 2, 50_000, 50_000))
    (True, False, False)
    """
    if len(shape) < 4:  # no windows are taken
        return len(shape) == 2 or shape[0] <= MOST_IMAGES
    rows, planes = shape[-2], shape[0] * math.prod(shape[2:-2])
    return max(rows, planes) <= MOST_IMAGES and rows * shape[-1] < 1 << 31  # places in a plane are int32


def gap_and_winner(logits: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return the gap to the runner-up, at most `most`, and the winner of logits ``(batch, classes, *space)``."""
    batch, _, *space = logits.shape
    flat = as_images(logits.detach())
    if logits.is_cuda:
        gap, winner = _on_device().gap_and_winner(flat, most)
    else:
        images, _, voxels = flat.shape
        gap, winner = flat.new_empty(images, voxels), flat.new_empty(images, voxels, dtype=torch.int32)
        for image in range(images):
            z = flat[image].contiguous().numpy()
            loop = partial(_edges, z, z.dtype.type(most), gap[image].numpy(), winner[image].numpy())
            in_parts(loop, voxels, 256)
    return gap.reshape(batch, *space), winner.reshape(batch, *space)


def image_mean(values: Tensor) -> Tensor:
    """Return the float64 mean of every image of ``(images, n)``; with gradients where they are wanted."""
    if values.is_cuda and serves(values):
        return _on_device().image_mean(values)
    return values.mean(1, dtype=torch.float64)


def window_mean(values: Tensor, width: int, out: Tensor) -> None:
    """Set the mean of what is inside a window in the last two axes of ``(batch, *space)``; in `out` space is a row."""
    if values.is_cuda:
        _on_device().window_mean(_planes(values), width, _planes(out.detach()))
    else:
        _by_rows(_mean_rows, values, out, width // 2)


def window_share(decided: Tensor, classes: int, width: int, out: Tensor) -> None:
    """Set the share of the own class of what is inside a window, as the mean."""
    if decided.is_cuda:
        _on_device().window_share(_planes(decided), classes, width, _planes(out.detach()))
    else:
        _by_rows(_share_rows, decided, out, width // 2, classes)


def _planes(values: Tensor) -> Tensor:
    """Return ``(batch, planes, rows, columns)``."""
    return values.flatten(1, -3) if values.ndim > 3 else values.unsqueeze(1)


def _on_device():  # type: ignore[no-untyped-def]
    from segcal.kernels import windows_triton

    return windows_triton


def _by_rows(loop: Callable[..., None], values: Tensor, out: Tensor, *sizes: int) -> None:
    """Run the loop for parts of the rows of every plane, several at once; images of `out` may lie apart."""
    given, made = _planes(values).contiguous().numpy(), _planes(out.detach()).numpy()
    images, planes, rows, _ = given.shape
    step = max(64, -(-rows // 8))
    parts = [(i, p, y) for i in range(images) for p in range(planes) for y in range(0, rows, step)]

    def work(number: int) -> None:
        image, plane, begin = parts[number]
        loop(given[image, plane], made[image, plane], begin, min(begin + step, rows), *sizes)

    in_threads(work, len(parts))


@compiled
def _edges(z, most, gap, winner, begin, end):  # type: ignore[no-untyped-def]
    """Set the distance from the winner to the next class, at most `most`, and the winner."""
    for start in range(begin, end, 256):
        n = min(256, end - start)
        top, second = z[0, start : start + n].copy(), np.full(n, -np.inf, z.dtype)
        first = np.zeros(n, np.int32)
        for c in range(1, z.shape[0]):
            row, code = z[c, start : start + n], np.int32(c)
            for v in range(n):
                value = row[v]
                above = value > top[v]
                second[v] = top[v] if above else max(second[v], value)
                top[v] = value if above else top[v]
                first[v] = code if above else first[v]
        for v in range(n):
            gap[start + v] = min(top[v] - second[v], most)
            winner[start + v] = first[v]


@compiled
def _mean_rows(values, out, begin, end, half):  # type: ignore[no-untyped-def]
    """Set the mean of what is inside the window of every voxel of some rows."""
    rows, columns = values.shape
    sums = np.zeros(columns)
    for y in range(max(0, begin - half), min(rows, begin + half)):
        for x in range(columns):
            sums[x] += values[y, x]
    for y in range(begin, end):
        if y + half < rows:
            for x in range(columns):
                sums[x] += values[y + half, x]
        if y - half - 1 >= 0 and y > begin:
            for x in range(columns):
                sums[x] -= values[y - half - 1, x]
        high = min(y + half, rows - 1) - max(y - half, 0) + 1
        total = 0.0
        for x in range(min(half, columns)):
            total += sums[x]
        for x in range(columns):
            if x + half < columns:
                total += sums[x + half]
            if x - half - 1 >= 0:
                total -= sums[x - half - 1]
            out[y, x] = total / (high * (min(x + half, columns - 1) - max(x - half, 0) + 1))


@compiled
def _share_rows(decided, out, begin, end, half, classes):  # type: ignore[no-untyped-def]
    """Set the share of the voxel's own class inside the window of every voxel of some rows."""
    rows, columns = decided.shape
    counts = np.zeros((columns, classes), np.int32)
    for y in range(max(0, begin - half), min(rows, begin + half)):
        for x in range(columns):
            counts[x, decided[y, x]] += 1
    total = np.zeros(classes, np.int32)
    for y in range(begin, end):
        if y + half < rows:
            for x in range(columns):
                counts[x, decided[y + half, x]] += 1
        if y - half - 1 >= 0 and y > begin:
            for x in range(columns):
                counts[x, decided[y - half - 1, x]] -= 1
        high = min(y + half, rows - 1) - max(y - half, 0) + 1
        total[:] = 0
        for x in range(min(half, columns)):
            total += counts[x]
        for x in range(columns):
            if x + half < columns:
                for c in range(classes):
                    total[c] += counts[x + half, c]
            if x - half - 1 >= 0:
                for c in range(classes):
                    total[c] -= counts[x - half - 1, c]
            area = high * (min(x + half, columns - 1) - max(x - half, 0) + 1)
            out[y, x] = total[decided[y, x]] / area
