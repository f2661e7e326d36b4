"""The passes of :mod:`segcal.kernels.windows` on the CPU: sums and counts that slide along with the voxel."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.jit import compiled
from segcal.kernels.threads import cut, in_threads


@compiled
def edges(z, most, gap, winner, begin, end):  # type: ignore[no-untyped-def]
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
def mean_rows(values, half, out, begin, end):  # type: ignore[no-untyped-def]
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
def share_rows(decided, classes, half, out, begin, end):  # type: ignore[no-untyped-def]
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


def gap_and_winner(logits: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return the gap to the runner-up and the winner of logits ``(images, classes, n)``."""
    images, _, voxels = logits.shape
    gap = torch.empty(images, voxels, dtype=logits.dtype)
    winner = torch.empty(images, voxels, dtype=torch.int32)
    ends = cut(voxels, 256)
    for image in range(images):
        z = logits[image].contiguous().numpy()
        own = gap[image].numpy(), winner[image].numpy()

        def one(part: int, z: np.ndarray = z, own: tuple[np.ndarray, np.ndarray] = own) -> None:
            edges(z, z.dtype.type(most), *own, ends[part], ends[part + 1])

        in_threads(one, len(ends) - 1)
    return gap, winner


def window_mean(values: Tensor, width: int, out: Tensor) -> None:
    """Set the mean in a window of planes ``(images, planes, rows, columns)``; images of `out` may lie apart."""
    _by_rows(values, out, lambda plane, made, a, b: mean_rows(plane, width // 2, made, a, b))


def window_share(decided: Tensor, classes: int, width: int, out: Tensor) -> None:
    """Set the share of the own class in a window of planes ``(images, planes, rows, columns)``, as the mean."""
    _by_rows(decided, out, lambda plane, made, a, b: share_rows(plane, classes, width // 2, made, a, b))


def _by_rows(values: Tensor, out: Tensor, work: Callable[[np.ndarray, np.ndarray, int, int], None]) -> None:
    """Do the work for parts of the rows of every plane, several at once."""
    given, made = values.contiguous().numpy(), out.numpy()
    images, planes, rows, _ = given.shape
    step = max(64, -(-rows // 8))
    parts = [(i, p, y) for i in range(images) for p in range(planes) for y in range(0, rows, step)]

    def one(number: int) -> None:
        image, plane, begin = parts[number]
        work(given[image, plane], made[image, plane], begin, min(begin + step, rows))

    in_threads(one, len(parts))
