"""Calibrators on a CUDA device in one pass: a program reads all classes of a block of voxels, maps them, writes them.

The forms are those of :mod:`segcal.kernels.plan`. Where a score depends on its own class alone,
:mod:`segcal.kernels.by_class_triton` serves. Here a thread holds all classes of a voxel, padded to a power of two;
padded ones stay at minus infinity. Products with matrices go through the tensor cores with every float32 in three
parts, so that they are as exact as float32; voxels of a block that have different winners are taken winner by winner.
Ranks are found by comparing each class with each.

All types are computed in float32; the result is rounded to the type that is asked for, and the winner's lead is given
in it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.by_class_triton import KINDS, LARGEST_LOGIT, apply_by_class
from segcal.kernels.plan import CENTRES, LEAD_UNITS, FusedPlan

# Voxels of a program: one warp, one voxel to a thread.
HELD_BLOCK = 32
# The strides of voxels are one nearly always. Where classes are held the compiler must not know it: it would give every
# thread several voxels, and spread the classes of a voxel over several threads.
UNKNOWN = ["z_voxel", "out_voxel"]


@triton.jit
def _places(image, voxel, image_stride, class_stride, voxel_stride, CP: tl.constexpr):
    """Return where the classes of voxels are, ``(voxels, classes)``."""
    k = tl.arange(0, CP).to(tl.int64)
    return image * image_stride + voxel[:, None] * voxel_stride + k[None, :] * class_stride


@triton.jit
def _read(z_ptr, bad_ptr, at, inside, C: tl.constexpr, CP: tl.constexpr):
    """Return logits of a block, the largest, and its class; note numbers that cannot be computed with."""
    k = tl.arange(0, CP)
    live = inside[:, None] & (k < C)[None, :]
    z = tl.load(z_ptr + at, mask=live, other=-float("inf")).to(tl.float32)
    wrong = (live & ~(tl.abs(z) <= LARGEST_LOGIT)).to(tl.int32)
    if tl.max(tl.max(wrong, 1), 0) > 0:
        tl.store(bad_ptr, 1)
    z = tl.where(inside[:, None] | (k >= C)[None, :], z, 0.0)
    top = tl.max(z, 1)
    return z, top, tl.min(tl.where(z == top[:, None], k[None, :], CP), 1)


@triton.jit
def _write(out_ptr, at, inside, s, winner, lead, C: tl.constexpr, CP: tl.constexpr, KEEPS: tl.constexpr,
           NORMALISES: tl.constexpr):  # fmt: skip
    """Normalise scores, keep the winner where only rounding made it another class, and write the result."""
    k = tl.arange(0, CP)
    s = tl.where((k < C)[None, :], s, -float("inf"))
    if NORMALISES:
        if not KEEPS:  # else the winner is the largest, with zero
            s -= tl.max(s, 1)[:, None]
        log = tl.log(tl.sum(tl.exp(s), 1))
        s = (s - log[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
        if KEEPS:
            own = (-log).to(out_ptr.dtype.element_ty).to(tl.float32)
            before = (k[None, :] < winner[:, None]) & (s >= own[:, None])
            limit = (own + own * lead).to(out_ptr.dtype.element_ty).to(tl.float32)
            rival = (tl.max(before.to(tl.int32), 1) > 0)[:, None] & (k[None, :] != winner[:, None])
            s = tl.where(rival, tl.minimum(s, limit[:, None]), s)
    tl.store(out_ptr + at, s.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (k < C)[None, :])


@triton.jit(do_not_specialize=UNKNOWN)
def _affine(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
    CENTRE: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Apply the matrix of every voxel's map."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    x, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    if CENTRE == 1 or CENTRE == 2:
        x -= top[:, None]
    if CENTRE == 2:
        x -= tl.log(tl.sum(tl.exp(x), 1))[:, None]
    if CENTRE == 3:
        x -= tl.sum(tl.where((k == C - 1)[None, :], x, 0.0), 1)[:, None]
    x = tl.where((k < C)[None, :], x, 0.0)
    both = (k < C)[:, None] & (k < C)[None, :]
    at = k[None, :] * C + k[:, None]  # columns of x by rows of W
    s = tl.zeros_like(x)
    left = tl.where(inside, winner, E) if E > 1 else tl.where(inside, 0, E)
    e = tl.min(left, 0)
    while e < E:
        weight = tl.load(weight_ptr + e * C * C + at, mask=both, other=0.0)
        bias = tl.load(bias_ptr + e * C + k, mask=k < C, other=0.0)
        own = tl.dot(x, weight, input_precision="tf32x3") + bias[None, :]
        s = tl.where((left == e)[:, None], own, s)
        left = tl.where(left == e, E, left)
        e = tl.min(left, 0)
    at_out = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at_out, inside, s, winner, lead, C, CP, KEEPS, NORMALISES)


@triton.jit(do_not_specialize=UNKNOWN)
def _drops(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
):  # fmt: skip
    """Sum the drops down to the rank of every class: what a rank has more than the one above it is not negative."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    start = z_ptr + image * z_image + voxel * z_voxel
    rank = tl.zeros(z.shape, tl.int32)
    for d in range(C):
        other = tl.load(start + tl.cast(d, tl.int64) * z_class, mask=inside, other=0.0).to(tl.float32)[:, None]
        rank += ((other > z) | ((other == z) & (d < k)[None, :])).to(tl.int32)
    rank = tl.minimum(rank, C - 1)
    e = tl.where(inside, winner, 0)[:, None] * C
    s = tl.load(bias_ptr + e + rank)
    above = top
    for j in range(1, C):
        value = tl.max(tl.where((rank == j) & (k < C)[None, :], z, -float("inf")), 1)
        s += tl.load(weight_ptr + (e + (j - 1)) * C + rank) * (above - value)[:, None]
        above = value
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, -s, winner, lead, C, CP, KEEPS, NORMALISES)


@triton.jit(do_not_specialize=UNKNOWN)
def _curves(
    z_ptr, out_ptr, bad_ptr, around_ptr, ramps_ptr, terms_ptr, steps_ptr, pairs_ptr, n, z_image, z_class, z_voxel,
    out_image, out_class, out_voxel, lead, C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr,
    NORMALISES: tl.constexpr, RAMPS: tl.constexpr, TERMS: tl.constexpr, CONTEXTS: tl.constexpr, WINNERS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Lower every class by a curve of its gap, which changes with what is around."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    gap = tl.where((k < C)[None, :], top[:, None] - z, 0.0)
    s = tl.zeros_like(gap)
    own = tl.zeros_like(gap)
    row = tl.where(inside, winner, 0) if WINNERS > 1 else winner * 0
    for j in tl.static_range(RAMPS):
        slope = tl.zeros([BLOCK], tl.float32) + tl.load(ramps_ptr + 3 * j)
        for t in range(TERMS):
            number = tl.load(terms_ptr + 3 * t).to(tl.int64)
            u = tl.load(around_ptr + (image * CONTEXTS + number) * n + voxel, mask=inside, other=0.0)
            share = (u - tl.load(terms_ptr + 3 * t + 1)) * tl.load(terms_ptr + 3 * t + 2)
            slope += tl.minimum(tl.maximum(share, 0.0), 1.0) * tl.load(steps_ptr + t * RAMPS + j)
        slope = tl.maximum(slope, 0.0)[:, None]
        if WINNERS > 0 and j % GROUP == 0:
            place = (row[:, None] * C + k[None, :]) * GROUPS + j // GROUP
            own = tl.load(pairs_ptr + place, mask=(k < C)[None, :], other=0.0)
        ramp = tl.minimum(tl.maximum(gap - tl.load(ramps_ptr + 3 * j + 1), 0.0), tl.load(ramps_ptr + 3 * j + 2))
        s -= (slope + own) * ramp
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, s, winner, lead, C, CP, KEEPS, NORMALISES)


def apply_plan(plan: FusedPlan, logits: Tensor, out: Tensor, around: Tensor | None, normalises: bool) -> bool:
    """Fill `out` ``(images, C, n)``, which may be `logits` itself; return whether all logits can be computed with."""
    images, classes, voxels = logits.shape
    if logits.numel() == 0:
        return True
    bad = torch.zeros(1, dtype=torch.int32, device=logits.device)
    where = (voxels, *logits.stride(), *out.stride(), LEAD_UNITS * torch.finfo(out.dtype).eps, classes)
    tables = [table.to(logits.device) for table in plan.tables]
    if plan.form in KINDS[1:] or (plan.form == "affine" and tables[0].ndim == 1):
        apply_by_class(plan, logits, out, bad, tables, where, normalises)
        return not bool(bad)
    padded = max(16, triton.next_power_of_2(classes))
    grid = (triton.cdiv(voxels, HELD_BLOCK), images)
    sizes = (padded, HELD_BLOCK, plan.keeps, normalises)
    if plan.form == "curves":
        assert around is not None
        given = _curve_tables(plan, tables, around)
        _curves[grid](logits, out, bad, *given, *where, *sizes, *_curve_sizes(plan), num_warps=HELD_BLOCK // 32)
    elif plan.form == "drops":
        # Summed down to each rank, with nothing for the first; columns by ranks.
        weight = torch.nn.functional.pad(tables[0].cumsum(1), (0, 1, 1, 0)).mT.float().contiguous()
        bias = torch.nn.functional.pad(tables[1].cumsum(1), (1, 0)).float().contiguous()
        _drops[grid](logits, out, bad, weight, bias, *where, *sizes, num_warps=HELD_BLOCK // 32)
    else:
        weight, bias = (table.float().contiguous() for table in tables)
        _affine[grid](
            logits,
            out,
            bad,
            weight,
            bias,
            *where,
            *sizes,
            CENTRES.index(plan.centre),
            len(weight),
            num_warps=HELD_BLOCK // 32,
        )
    return not bool(bad)


def _curve_tables(plan: FusedPlan, tables: list[Tensor], around: Tensor) -> tuple[Tensor, ...]:
    """Return contexts, ramps ``(J, 3)`` (slope, start, width), pieces of hats ``(T, 3)``, their steps, and pairs."""
    knots, base, hats, hat_knots, pairs = tables
    widths = torch.cat([knots.diff(), knots.new_full((1,), torch.inf)])
    first, terms, steps = 0, [], []
    slope = base.clone()
    for number, span in enumerate(plan.spans):
        own, table = hat_knots[first : first + span], hats[first : first + span]
        slope = slope + table[0]
        terms.append(torch.stack([own.new_full((span - 1,), number), own[:-1], 1 / own.diff()], 1))
        steps.append(table.diff(dim=0))
        first += span
    empty = knots.new_zeros(0)
    return (
        around.float().contiguous(),
        torch.stack([slope, knots, widths], 1).float().contiguous(),
        torch.cat([empty.reshape(0, 3), *terms]).float().contiguous(),
        torch.cat([empty.reshape(0, len(base)), *steps]).float().contiguous(),
        pairs.clamp(min=0).float().contiguous(),
    )


def _curve_sizes(plan: FusedPlan) -> tuple[int, ...]:
    """Return ramps, pieces of hats, contexts, winners with curves of their own, ramps of a group, and groups."""
    ramps, pairs = len(plan.tables[1]), plan.tables[4]
    pieces = sum(plan.spans) - len(plan.spans)
    return ramps, pieces, len(plan.spans), len(pairs), plan.group, max(1, pairs.shape[-1])
