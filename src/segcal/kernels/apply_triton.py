"""Calibrators on a CUDA device in one pass: a program reads all classes of a block of voxels, maps them, writes them.

The forms are those of :mod:`segcal.kernels.plan`. A thread holds all (up to 64) classes of its voxels, padded to a
power of two; padded ones stay at minus infinity. Maps that differ by winner lie with the winners next to each other,
so that voxels of a warp which have different ones still read from one line. Mixtures and tables need no sorting: they
are one function of the gap, made of steps that are monotone in floating point. Drops are sorted by a network of
comparisons, and ranks are found by comparing each class with each.

All types are computed in float32; the result is rounded to the type that is asked for, and the winner's lead is given
in it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.apply_tables import (
    FIRST,
    PLACES,
    SHIFT,
    affine_tables,
    curve_tables,
    drop_tables,
    function_tables,
    sorting_network,
)
from segcal.kernels.exponential import FLOOR_32
from segcal.kernels.plan import CENTRES, LEAD_UNITS, FusedPlan
from segcal.kernels.triton_arithmetic import exp_below_zero

LARGEST_LOGIT = tl.constexpr(1e10)
WARPS = 2
_SHIFT, _FIRST, _PLACES = tl.constexpr(SHIFT), tl.constexpr(FIRST), tl.constexpr(PLACES)
_FLOOR = tl.constexpr(float(FLOOR_32))
# Numbers that a thread holds of its voxels; twice as many where one map serves all, since a weight then serves several.
HELD = 32
MOST_HELD = 64  # where there are more classes, several threads share a voxel
# The strides of voxels are one nearly always. The compiler must not know it: it would give a thread neighbouring
# voxels, and where these are few, spread the classes of a voxel over several threads.
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
    other = tl.where((k < C)[None, :], 0.0, -float("inf"))
    z = tl.load(z_ptr + at, mask=live, other=0.0).to(tl.float32) + other
    wrong = tl.max((live & ~(tl.abs(z) <= LARGEST_LOGIT)).to(tl.int32), 1)
    tl.store(bad_ptr + 0 * wrong, 1, mask=wrong > 0)
    top = tl.max(z, 1)
    # Where nothing can be computed with no class is the largest, and tables must not be read past their end.
    return z, top, tl.min(tl.where(z == top[:, None], k[None, :], C - 1), 1)


@triton.jit
def _write(out_ptr, at, inside, s, own, log, winner, lead, C: tl.constexpr, CP: tl.constexpr, KEEPS: tl.constexpr,
           NORMALISES: tl.constexpr):  # fmt: skip
    """Write scores, normalised; the winner, with its `own`, is kept where only rounding made it another class."""
    k = tl.arange(0, CP)
    if NORMALISES:
        s = (s - log[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
        if KEEPS:
            own = (own - log).to(out_ptr.dtype.element_ty).to(tl.float32)
            before = tl.max(tl.where(k[None, :] < winner[:, None], s, -float("inf")), 1)
            limit = tl.where(
                before >= own, (own + own * lead).to(out_ptr.dtype.element_ty).to(tl.float32), float("inf")
            )
            s = tl.where(k[None, :] == winner[:, None], s, tl.minimum(s, limit[:, None]))
    tl.store(out_ptr + at, s.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (k < C)[None, :])


@triton.jit
def _logarithm(s, own, C: tl.constexpr, CP: tl.constexpr):
    """Return the logarithm of the sum of exponentials, of which `own` is the largest."""
    live = (tl.arange(0, CP) < C)[None, :]
    return own + tl.log(tl.sum(tl.where(live, tl.exp(s - own[:, None]), 0.0), 1))


@triton.jit
def _weights(ptr, winner, live, C: tl.constexpr, CP: tl.constexpr, E: tl.constexpr):
    """Return the weights of all classes, ``(1 or voxels, classes)``, of `E` maps that lie next to each other."""
    k = tl.arange(0, CP)
    if E == 1:
        found = tl.load(ptr + k, mask=k < C, other=0.0)[None, :]
    else:
        found = tl.load((ptr + winner)[:, None] + k[None, :] * E, mask=live, other=0.0)
    return found


@triton.jit(do_not_specialize=UNKNOWN)
def _affine(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
    CENTRE: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Apply the matrix of every voxel's map; a diagonal where there are none."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, live = voxel < n, (k < C)[None, :]
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    start = z_ptr + image * z_image + voxel * z_voxel
    centre, more = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    if CENTRE == 1 or CENTRE == 2:
        centre = top
    if CENTRE == 2:
        more = tl.log(tl.sum(tl.exp(z - top[:, None]), 1))
    if CENTRE == 3:
        centre = tl.load(start + tl.cast(C - 1, tl.int64) * z_class, mask=inside, other=0.0).to(tl.float32)
    if E == 0:
        x = tl.where(live, (z - centre[:, None]) - more[:, None], 0.0)
        s = x * tl.load(weight_ptr + k, mask=k < C, other=0.0)[None, :]
        s += tl.load(bias_ptr + k, mask=k < C, other=0.0)[None, :]
    else:
        # Zeros of z's own: others would lie with the classes of a voxel in several threads.
        s = _weights(bias_ptr, winner, live, C, CP, E) + tl.minimum(tl.abs(z), 0.0)
        for j in range(C):
            x = tl.load(start + tl.cast(j, tl.int64) * z_class, mask=inside, other=0.0).to(tl.float32)
            s += ((x - centre) - more)[:, None] * _weights(weight_ptr + j * C * E, winner, live, C, CP, E)
    s = tl.where(live, s, -float("inf"))
    own = tl.max(s, 1)
    log = _logarithm(s, own, C, CP)
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, s, own, log, winner, lead, C, CP, KEEPS, NORMALISES)


@triton.jit(do_not_specialize=UNKNOWN)
def _function(
    z_ptr, out_ptr, bad_ptr, points_ptr, guess_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image, out_class,
    out_voxel, lead, C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr,
    NORMALISES: tl.constexpr, KNOTS: tl.constexpr,
):  # fmt: skip
    """Take the logarithm of a mixture of probabilities, or of a table at a probability."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, live = voxel < n, (k < C)[None, :]
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    gap = z - top[:, None]
    e = tl.where(live & (gap > _FLOOR), exp_below_zero(gap), 0.0)
    if KNOTS == 0:
        tempered = tl.where(live, exp_below_zero(gap * tl.load(numbers_ptr)), 0.0)
        first = tl.load(numbers_ptr + 1) / tl.sum(tempered, 1)
        second = tl.load(numbers_ptr + 2) / tl.sum(e, 1)
        s = tl.log(tempered * first[:, None] + e * second[:, None] + tl.load(numbers_ptr + 3))
        own = tl.max(s, 1)
        log = 0.0 * top  # probabilities that are mixed sum to one
    else:
        p = e * (1.0 / tl.sum(e, 1))[:, None]
        low_half = p <= 0.5
        place = (tl.where(low_half, p, 1.0 - p).to(tl.int32, bitcast=True) >> _SHIFT) - _FIRST
        place = tl.minimum(tl.maximum(place, 0), _PLACES - 1)
        below = tl.load(guess_ptr + tl.where(low_half, place, 2 * _PLACES - 1 - place))
        step = tl.load(guess_ptr + 2 * _PLACES)
        while step > 0:
            further = below + step
            point = tl.load(points_ptr + tl.minimum(further, KNOTS) - 1)
            below = tl.where((further <= KNOTS) & (point < p), further, below)
            step = step // 2
        right = points_ptr + tl.minimum(tl.maximum(below, 1), KNOTS - 1)
        low, slope = tl.load(right - 1), tl.load(right + KNOTS)
        low_height, high_height = tl.load(right + 2 * KNOTS - 1), tl.load(right + 2 * KNOTS)
        # Rounding may lift the end of a piece above the start of the next.
        found = tl.minimum(tl.maximum(p - low, 0.0) * slope + low_height, high_height)
        s = tl.log(tl.maximum(found + tl.load(numbers_ptr) * p, tl.load(numbers_ptr + 1)))
        own = tl.max(s, 1)
        s = tl.where(k[None, :] == winner[:, None], s, tl.minimum(s, own[:, None] - lead))
        log = _logarithm(s, own, C, CP)
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, s, own, log, winner, lead, C, CP, KEEPS, NORMALISES)


@triton.jit
def _exchanged(values, i: tl.constexpr, j: tl.constexpr):
    """Return values with the smaller of two first."""
    low, high = tl.minimum(values[i], values[j]), tl.maximum(values[i], values[j])
    return values[:i] + (low,) + values[i + 1 : j] + (high,) + values[j + 1 :]  # noqa: RUF005 - Triton knows sums only


@triton.jit(do_not_specialize=UNKNOWN)
def _drops(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
    NETWORK: tl.constexpr,
):  # fmt: skip
    """Map the sorted gaps by the matrix of the winner, and give every class what its rank has."""
    image, k = tl.program_id(1).to(tl.int64), tl.arange(0, CP)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    start = z_ptr + image * z_image + voxel * z_voxel
    rank = tl.zeros(z.shape, tl.int32)
    gaps = ()
    for d in tl.static_range(C):
        other = tl.load(start + tl.cast(d, tl.int64) * z_class, mask=inside, other=0.0).to(tl.float32)
        rank += ((other[:, None] > z) | ((other[:, None] == z) & (d < k)[None, :])).to(tl.int32)
        gaps = gaps + (top - other,)  # type: ignore[assignment]  # noqa: RUF005
    for pair in tl.static_range(len(NETWORK) // 2):
        gaps = _exchanged(gaps, NETWORK[2 * pair], NETWORK[2 * pair + 1])
    s = tl.zeros(z.shape, tl.float32)
    least = tl.zeros([BLOCK], tl.float32)
    for r in range(1, C):
        drop = tl.load(bias_ptr + r * C + winner)
        row = weight_ptr + r * C * C + winner
        for j in tl.static_range(1, C):
            drop += gaps[j] * tl.load(row + j * C)
        least = tl.maximum(least, drop)  # rounding need not be monotone
        s = tl.where(rank == r, -least[:, None], s)
    s = tl.where((k < C)[None, :], s, -float("inf"))
    own = tl.max(s, 1)
    log = _logarithm(s, own, C, CP)
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, s, own, log, winner, lead, C, CP, KEEPS, NORMALISES)


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
    inside, live = voxel < n, (k < C)[None, :]
    z, top, winner = _read(z_ptr, bad_ptr, _places(image, voxel, z_image, z_class, z_voxel, CP), inside, C, CP)
    gap = tl.where(live, top[:, None] - z, 0.0)
    shares = ()
    for t in tl.static_range(TERMS):
        number = tl.load(terms_ptr + 3 * t).to(tl.int64)
        u = tl.load(around_ptr + (image * CONTEXTS + number) * n + voxel, mask=inside, other=0.0)
        share = (u - tl.load(terms_ptr + 3 * t + 1)) * tl.load(terms_ptr + 3 * t + 2)
        shares = shares + (tl.minimum(tl.maximum(share, 0.0), 1.0),)  # type: ignore[assignment]  # noqa: RUF005
    s = tl.zeros_like(gap)
    for g in range(GROUPS):
        pair = _weights(pairs_ptr + g * C * WINNERS, winner, live, C, CP, WINNERS) if WINNERS > 0 else 0.0
        for j in range(g * GROUP, tl.minimum(RAMPS, (g + 1) * GROUP)):
            slope = tl.zeros([BLOCK], tl.float32) + tl.load(ramps_ptr + 3 * j)
            for t in tl.static_range(TERMS):
                slope += shares[t] * tl.load(steps_ptr + t * RAMPS + j)
            ramp = tl.minimum(tl.maximum(gap - tl.load(ramps_ptr + 3 * j + 1), 0.0), tl.load(ramps_ptr + 3 * j + 2))
            slope = tl.maximum(slope, 0.0)
            s -= (slope[:, None] + pair if WINNERS > 0 else slope[:, None]) * ramp
    s = tl.where(live, s, -float("inf"))
    own = tl.max(s, 1)
    log = _logarithm(s, own, C, CP)
    at = _places(image, voxel, out_image, out_class, out_voxel, CP)
    _write(out_ptr, at, inside, s, own, log, winner, lead, C, CP, KEEPS, NORMALISES)


def apply_plan(plan: FusedPlan, logits: Tensor, out: Tensor, around: Tensor | None, normalises: bool) -> bool:
    """Fill `out` ``(images, C, n)``, which may be `logits` itself; return whether all logits can be computed with."""
    images, classes, voxels = logits.shape
    if logits.numel() == 0:
        return True
    bad = torch.zeros(1, dtype=torch.int32, device=logits.device)
    where = (voxels, *logits.stride(), *out.stride(), LEAD_UNITS * torch.finfo(out.dtype).eps, classes)
    tables = [table.to(logits.device) for table in plan.tables]
    padded = triton.next_power_of_2(classes)
    held = HELD * (2 if plan.form == "affine" and (tables[0].ndim == 1 or len(tables[0]) == 1) else 1)
    block = 32 * WARPS * min(4, max(1, held // padded))
    block = min(block, max(1, 32 * WARPS * MOST_HELD // padded))
    grid = (triton.cdiv(voxels, block), images)
    sizes = (padded, block, plan.keeps, normalises)
    if plan.form == "curves":
        assert around is not None
        given, steps = curve_tables(plan, tables, around)
        _curves[grid](logits, out, bad, *given, *where, *sizes, *steps, num_warps=WARPS)
    elif plan.form == "drops":
        given = drop_tables(tables)
        _drops[grid](logits, out, bad, *given, *where, *sizes, tuple(sorting_network(classes)), num_warps=WARPS)
    elif plan.form == "affine":
        given, maps = affine_tables(tables)
        centre = CENTRES.index(plan.centre)
        _affine[grid](logits, out, bad, *given, *where, *sizes, centre, maps, num_warps=WARPS)
    else:
        given, knots = function_tables(plan.form, tables, classes)
        _function[grid](logits, out, bad, *given, *where, *sizes, knots, num_warps=WARPS, enable_fp_fusion=False)
    return not bool(bad)
