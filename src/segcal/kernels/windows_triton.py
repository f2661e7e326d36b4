"""The passes of :mod:`segcal.kernels.windows` on a CUDA device, first along columns and then along rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
ROWS = 64


@triton.jit
def _edges(z_ptr, gap_ptr, winner_ptr, n, stride, most, C, BLOCK: tl.constexpr):
    image = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    step = tl.cast(stride, tl.int64)
    start = z_ptr + image * C * step + at
    top = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    second = tl.full([BLOCK], -float("inf"), tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    for c in tl.range(1, C, loop_unroll_factor=4):
        z = tl.load(start + c * step, mask=inside, other=0.0).to(tl.float32)
        above = z > top
        second = tl.where(above, top, tl.maximum(second, z))
        top = tl.where(above, z, top)
        winner = tl.where(above, c, winner)
    tl.store(gap_ptr + image * n + at, tl.minimum(top - second, most), mask=inside)
    tl.store(winner_ptr + image * n + at, winner, mask=inside)


@triton.jit
def _column_sums(values_ptr, sums_ptr, rows, columns, HALF: tl.constexpr, BLOCK: tl.constexpr):
    plane, y = tl.program_id(2).to(tl.int64), tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = values_ptr + plane * rows * columns + x
    total = tl.zeros([BLOCK], tl.float64)
    for row in range(tl.maximum(y - HALF, 0), tl.minimum(y + HALF, rows - 1) + 1):
        total += tl.load(start + tl.cast(row, tl.int64) * columns, mask=x < columns, other=0.0).to(tl.float64)
    tl.store(sums_ptr + (plane * rows + y) * columns + x, total, mask=x < columns)


@triton.jit
def _row_means(sums_ptr, out_ptr, rows, columns, HALF: tl.constexpr, BLOCK: tl.constexpr):
    plane, y = tl.program_id(2).to(tl.int64), tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = sums_ptr + (plane * rows + y) * columns
    total = tl.zeros([BLOCK], tl.float64)
    for step in range(-HALF, HALF + 1):
        place = x + step
        total += tl.load(start + place, mask=(place >= 0) & (place < columns), other=0.0)
    high = tl.minimum(y + HALF, rows - 1) - tl.maximum(y - HALF, 0) + 1
    wide = tl.minimum(x + HALF, columns - 1) - tl.maximum(x - HALF, 0) + 1
    mean = total / (high * wide).to(tl.float64)
    tl.store(out_ptr + (plane * rows + y) * columns + x, mean.to(tl.float32), mask=x < columns)


@triton.jit
def _column_counts(decided_ptr, counts_ptr, rows, columns, first, CHUNK: tl.constexpr, HALF: tl.constexpr,
                   ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    plane, begin = tl.program_id(2).to(tl.int64), tl.program_id(1) * ROWS
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CHUNK)
    start = decided_ptr + plane * rows * columns + x
    counts = tl.zeros([CHUNK, BLOCK], tl.int32)
    for row in range(tl.maximum(begin - HALF, 0), tl.minimum(begin + HALF, rows)):
        seen = tl.load(start + tl.cast(row, tl.int64) * columns, mask=x < columns, other=-1) - first
        counts += (seen[None, :] == c[:, None]).to(tl.int32)
    for y in range(begin, tl.minimum(begin + ROWS, rows)):
        ahead, behind = y + HALF, y - HALF - 1
        seen = (
            tl.load(start + tl.cast(ahead, tl.int64) * columns, mask=(x < columns) & (ahead < rows), other=-1) - first
        )
        counts += ((seen[None, :] == c[:, None]) & (ahead < rows)).to(tl.int32)
        gone = (
            tl.load(start + tl.cast(behind, tl.int64) * columns, mask=(x < columns) & (behind >= 0), other=-1) - first
        )
        counts -= ((gone[None, :] == c[:, None]) & (behind >= 0) & (y > begin)).to(tl.int32)
        at = ((plane * CHUNK + c[:, None]) * rows + y) * columns + x[None, :]
        tl.store(counts_ptr + at, counts.to(tl.uint8), mask=(x < columns)[None, :])


@triton.jit
def _row_shares(decided_ptr, counts_ptr, out_ptr, rows, columns, first, CHUNK: tl.constexpr, HALF: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    plane, y = tl.program_id(2).to(tl.int64), tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = (plane * rows + y) * columns + x
    own = tl.load(decided_ptr + here, mask=x < columns, other=-1) - first
    mine = (own >= 0) & (own < CHUNK) & (x < columns)
    start = counts_ptr + ((plane * CHUNK + own) * rows + y) * columns
    total = tl.zeros([BLOCK], tl.int32)
    for step in range(-HALF, HALF + 1):
        place = x + step
        total += tl.load(start + place, mask=mine & (place >= 0) & (place < columns), other=0).to(tl.int32)
    high = tl.minimum(y + HALF, rows - 1) - tl.maximum(y - HALF, 0) + 1
    wide = tl.minimum(x + HALF, columns - 1) - tl.maximum(x - HALF, 0) + 1
    share = total.to(tl.float64) / (high * wide).to(tl.float64)
    tl.store(out_ptr + here, share.to(tl.float32), mask=mine)


def gap_and_winner(logits: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return the gap to the runner-up and the winner of logits ``(images, classes, n)``."""
    images, classes, voxels = logits.shape
    logits = logits.contiguous()
    gap = torch.empty(images, voxels, dtype=torch.float32, device=logits.device)
    winner = torch.empty(images, voxels, dtype=torch.int32, device=logits.device)
    grid = (triton.cdiv(voxels, BLOCK), images)
    if logits.numel():
        _edges[grid](logits, gap, winner, voxels, voxels, most, classes, BLOCK)
    return gap, winner


def window_mean(values: Tensor, width: int) -> Tensor:
    """Return the mean in a window of planes ``(planes, rows, columns)``."""
    planes, rows, columns = values.shape
    sums = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    made = torch.empty_like(values, memory_format=torch.contiguous_format)
    grid = (triton.cdiv(columns, BLOCK), rows, planes)
    if values.numel():
        _column_sums[grid](values.contiguous(), sums, rows, columns, width // 2, BLOCK)
        _row_means[grid](sums, made, rows, columns, width // 2, BLOCK)
    return made


def window_share(decided: Tensor, classes: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return the share of the own class in a window of planes ``(planes, rows, columns)``, some classes at a time."""
    planes, rows, columns = decided.shape
    made = torch.empty(decided.shape, dtype=dtype, device=decided.device)
    if not decided.numel():
        return made
    chunk, block = min(32, triton.next_power_of_2(classes)), 64
    counts = torch.empty(planes, chunk, rows, columns, dtype=torch.uint8, device=decided.device)
    for first in range(0, classes, chunk):
        tall = (triton.cdiv(columns, block), triton.cdiv(rows, ROWS), planes)
        _column_counts[tall](decided, counts, rows, columns, first, chunk, width // 2, ROWS, block)
        wide = (triton.cdiv(columns, BLOCK), rows, planes)
        _row_shares[wide](decided, counts, made, rows, columns, first, chunk, width // 2, BLOCK)
    return made
