"""The passes of :mod:`segcal.kernels.windows` on a CUDA device, first along columns and then along rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
ROWS = 64
RUNNING = 1024
SUMMED = 8192


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
def _part_sums(values_ptr, sums_ptr, n, SUMMED: tl.constexpr):
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    at = part * SUMMED + tl.arange(0, SUMMED)
    values = tl.load(values_ptr + image * n + at, mask=at < n, other=0.0)
    tl.store(sums_ptr + image * tl.num_programs(0) + part, tl.sum(values.to(tl.float64), 0))


@triton.jit
def _column_sums(values_ptr, sums_ptr, rows, columns, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    plane, begin = tl.program_id(2).to(tl.int64), tl.program_id(1) * ROWS
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start, made = values_ptr + plane * rows * columns + x, sums_ptr + plane * rows * columns + x
    total = tl.zeros([BLOCK], tl.float64)
    first = tl.maximum(begin - HALF, 0)
    for row in tl.range(first, tl.minimum(begin + HALF, rows), loop_unroll_factor=4):
        total += tl.load(start + tl.cast(row, tl.int64) * columns, mask=x < columns, other=0.0).to(tl.float64)
    for y in tl.range(begin, tl.minimum(begin + ROWS, rows), loop_unroll_factor=4):
        ahead, behind = tl.cast(y + HALF, tl.int64), tl.cast(y - HALF - 1, tl.int64)
        new = tl.load(start + ahead * columns, mask=x < tl.where(ahead < rows, columns, 0), other=0.0)
        old = tl.load(start + behind * columns, mask=x < tl.where(behind >= first, columns, 0), other=0.0)
        total += new.to(tl.float64) - old.to(tl.float64)
        tl.store(made + tl.cast(y, tl.int64) * columns, total.to(tl.float32), mask=x < columns)


@triton.jit
def _row_means(sums_ptr, out_ptr, rows, columns, planes, image, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Take differences of running sums, which begin anew in every block: it reads more than it writes."""
    plane, y, lane = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
    x = tl.program_id(0) * (BLOCK - 2 * HALF - 1) + lane
    place = x - HALF - 1
    values = tl.load(sums_ptr + (plane * rows + y) * columns + place, mask=(place >= 0) & (place < columns), other=0.0)
    running = tl.cumsum(values.to(tl.float64), 0)
    total = tl.gather(running, tl.minimum(lane + 2 * HALF + 1, BLOCK - 1), 0) - running
    high = tl.minimum(y + HALF, rows - 1) - tl.maximum(y - HALF, 0) + 1
    wide = tl.minimum(x + HALF, columns - 1) - tl.maximum(x - HALF, 0) + 1
    mean = total / (high * wide).to(tl.float64)
    made = (lane < BLOCK - 2 * HALF - 1) & (x < columns)
    tl.store(_plane(out_ptr, plane, planes, image, rows, columns) + y * columns + x, mean.to(tl.float32), mask=made)


@triton.jit
def _plane(out_ptr, plane, planes, image, rows, columns):
    """Return where a plane begins in a result that has so many planes in each image, and images so far apart."""
    return out_ptr + plane // planes * image + plane % planes * rows * columns


@triton.jit
def _class_bits(decided_ptr, bits_ptr, rows, columns, words, C):
    """Write for every class one bit per voxel: 32 of a row in a word, four words at a time, each with the next.

    The first word is before the row. A warp asks its lanes who has a class, and lane c keeps the answer for class c.
    """
    plane, y, lane = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, 32)
    word = tl.program_id(0) * 4
    row, x = decided_ptr + (plane * rows + y) * columns, (word - 1) * 32 + lane
    first = tl.load(row + x, mask=(x >= 0) & (x < columns), other=-1)
    second = tl.load(row + x + 32, mask=x + 32 < columns, other=-1)
    third = tl.load(row + x + 64, mask=x + 64 < columns, other=-1)
    fourth = tl.load(row + x + 96, mask=x + 96 < columns, other=-1)
    fifth = tl.load(row + x + 128, mask=x + 128 < columns, other=-1)
    for begin in range(0, C, 32):
        a, b, c, d, e = 0 * lane, 0 * lane, 0 * lane, 0 * lane, 0 * lane
        for number in tl.range(0, tl.minimum(32, C - begin), loop_unroll_factor=4):
            mine = lane == number
            a = tl.where(mine, _who_has(first, begin + number), a)
            b = tl.where(mine, _who_has(second, begin + number), b)
            c = tl.where(mine, _who_has(third, begin + number), c)
            d = tl.where(mine, _who_has(fourth, begin + number), d)
            e = tl.where(mine, _who_has(fifth, begin + number), e)
        out, there = bits_ptr + ((plane * C + begin + lane) * rows + y) * words + word, begin + lane < C
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $7, 0; @p st.global.v4.b32 [$1], {$2, $3, $3, $4};"
            " @p st.global.v4.b32 [$1+16], {$4, $5, $5, $6}; mov.b32 $0, 0; }",
            "=r,l,r,r,r,r,r,r", [out.to(tl.int64), a, b, c, d, e, there.to(tl.int32)], dtype=tl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@triton.jit
def _who_has(values, wanted):
    """Return a bit for every lane that has a number."""
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $1, $2; vote.sync.ballot.b32 $0, p, 0xffffffff; }", "=r,r,r", [values, wanted],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _window_shares(
    decided_ptr, bits_ptr, out_ptr, rows, columns, C, planes, image, HALF: tl.constexpr, WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the bits of the own class in the window: parts of two words of each row, seven rows at a time."""
    plane, y = tl.program_id(2).to(tl.int64), tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.minimum(x, columns - 1)
    own = tl.load(decided_ptr + (plane * rows + y) * columns + place)
    first = place - HALF + 32  # not negative; from the word before the row
    above, below = tl.maximum(y - HALF, 0), tl.minimum(y + HALF, rows - 1) + 1
    total = tl.zeros([BLOCK], tl.int32)
    for part in tl.static_range((2 * HALF + 32) // 32):
        # Beyond the row there may be no word; what is read there instead is left out.
        word = tl.minimum(first // 32 + part, WORDS - 1)
        wanted = (1 << (2 * HALF + 1 - 32 * part)) - 1 if 2 * HALF + 1 - 32 * part < 32 else -1
        wanted = tl.where(first // 32 + part < WORDS, wanted, 0)
        here = bits_ptr + ((plane * C + own) * rows + above) * WORDS + word
        for _ in range((below - above) // 7):
            a, b, c = (
                _window_bits(here, first),
                _window_bits(here + WORDS, first),
                _window_bits(here + 2 * WORDS, first),
            )
            one, rest = _sum(a, b, c)
            two, rest = _sum(rest, _window_bits(here + 3 * WORDS, first), _window_bits(here + 4 * WORDS, first))
            three, rest = _sum(rest, _window_bits(here + 5 * WORDS, first), _window_bits(here + 6 * WORDS, first))
            fours, twos = _sum(one, two, three)
            total += _ones(rest & wanted) + 2 * _ones(twos & wanted) + 4 * _ones(fours & wanted)
            here += 7 * WORDS
        for _ in range((below - above) % 7):
            total += _ones(_window_bits(here, first) & wanted)
            here += WORDS
    high, wide = below - above, tl.minimum(x + HALF, columns - 1) - tl.maximum(x - HALF, 0) + 1
    share = total.to(tl.float64) / (high * wide).to(tl.float64)
    out = _plane(out_ptr, plane, planes, image, rows, columns) + y * columns + x
    tl.store(out, share.to(out_ptr.dtype.element_ty), mask=x < columns)


@triton.jit
def _window_bits(ptr, first):
    """Return 32 bits of two words, from one of the first 32 on."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 l, h; mov.b64 {l, h}, $1; shf.r.wrap.b32 $0, l, h, $2; }", "=r,l,r", [tl.load(ptr), first],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _sum(a, b, c):
    """Return the sum of three bits in every place: what is carried, and the rest."""
    return (a & b) | (c & (a | b)), a ^ b ^ c


@triton.jit
def _ones(bits):
    """Return how many bits are set."""
    return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1)


def gap_and_winner(logits: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return the gap to the runner-up and the winner of logits ``(images, classes, n)``."""
    images, classes, voxels = logits.shape
    logits = logits.contiguous()
    gap = torch.empty(images, voxels, dtype=torch.float32, device=logits.device)
    winner = torch.empty(images, voxels, dtype=torch.int32, device=logits.device)
    grid = (triton.cdiv(voxels, BLOCK), images)
    if logits.numel():
        with torch.cuda.device_of(logits):
            _edges[grid](logits, gap, winner, voxels, voxels, most, classes, BLOCK)
    return gap, winner


def image_mean(values: Tensor) -> Tensor:
    """Return the float64 mean of every image of ``(images, n)``."""
    images, voxels = values.shape
    sums = torch.zeros(images, triton.cdiv(voxels, SUMMED), dtype=torch.float64, device=values.device)
    if values.numel():
        with torch.cuda.device_of(values):
            _part_sums[sums.shape[1], images](values.contiguous(), sums, voxels, SUMMED)
    return sums.sum(1) / voxels


def window_mean(values: Tensor, width: int, out: Tensor) -> None:
    """Set the mean in a window of planes ``(images, planes, rows, columns)``; images of `out` may lie apart."""
    images, planes, rows, columns = values.shape
    sums = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    made = RUNNING - width // 2 * 2 - 1
    if values.numel():
        tall = (triton.cdiv(columns, BLOCK), triton.cdiv(rows, ROWS), images * planes)
        grid = (triton.cdiv(columns, made), rows, images * planes)
        with torch.cuda.device_of(values):
            _column_sums[tall](values.contiguous(), sums, rows, columns, width // 2, ROWS, BLOCK)
            _row_means[grid](sums, out, rows, columns, planes, out.stride(0), width // 2, RUNNING)


def window_share(decided: Tensor, classes: int, width: int, out: Tensor) -> None:
    """Set the share of the own class in a window of planes ``(images, planes, rows, columns)``, as the mean."""
    images, planes, rows, columns = decided.shape
    if decided.numel():
        words = 4 * (triton.cdiv(columns, 32) // 4 + 1)  # one is before the row
        bits = torch.empty(images * planes, classes, rows, words, dtype=torch.int64, device=decided.device)
        grid = (triton.cdiv(columns, BLOCK), rows, images * planes)
        with torch.cuda.device_of(decided):
            _class_bits[words // 4, rows, images * planes](decided, bits, rows, columns, words, classes, num_warps=1)
            _window_shares[grid](
                decided, bits, out, rows, columns, classes, planes, out.stride(0), width // 2, words, BLOCK
            )
