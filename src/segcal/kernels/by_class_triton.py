"""Calibrators on a CUDA device whose score depends on its own class alone: a diagonal, a mixture, a table.

A thread goes through the classes of its voxels one after another, three times, of which the memory sees one. Mixtures
and tables need no sorting: they are one function of the gap, made of steps that are monotone in floating point.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.plan import FusedPlan
from segcal.kernels.triton_arithmetic import exp_below_zero

BLOCK = 256
LARGEST_LOGIT = tl.constexpr(1e10)
# The last is a diagonal with one factor for all classes.
KINDS = ("affine", "mixture", "table", "scale")


@triton.jit
def _score(gap, c, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND: tl.constexpr, KNOTS: tl.constexpr,
           STEPS: tl.constexpr):  # fmt: skip
    """Return the score of a class: a scaled logit, or the logarithm of a mixture or of a table at a probability."""
    if KIND == 0:
        return gap * tl.load(weight_ptr + c) + tl.load(bias_ptr + c)
    if KIND == 3:
        return gap * first
    if KIND == 1:
        tempered = exp_below_zero(tl.minimum(gap * tl.load(numbers_ptr) + first, 0.0))
        original = exp_below_zero(tl.minimum(gap + second, 0.0))
        return tl.log(tempered + original + tl.load(numbers_ptr + 3))
    p = exp_below_zero(tl.minimum(gap - first, 0.0))
    below = tl.zeros(p.shape, tl.int32)
    for step in tl.static_range(STEPS):
        further = below + (1 << (STEPS - 1 - step))
        point = tl.load(weight_ptr + tl.minimum(further, KNOTS) - 1)
        below = tl.where((further <= KNOTS) & (point < p), further, below)
    right = tl.minimum(tl.maximum(below, 1), KNOTS - 1)
    low, low_height = tl.load(weight_ptr + right - 1), tl.load(bias_ptr + right - 1)
    high_height, width = tl.load(bias_ptr + right), tl.load(weight_ptr + right) - low
    share = tl.where(width > 0, tl.div_rn(p - low, tl.maximum(width, 1e-30)), 1.0)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    # Rounding may lift the end of a piece above the start of the next.
    found = tl.minimum(low_height + share * (high_height - low_height), high_height)
    return tl.log(tl.maximum(found + tl.load(numbers_ptr) * p, tl.load(numbers_ptr + 1)))


@triton.jit
def _by_class(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image, out_class,
    out_voxel, lead, C, KEEPS: tl.constexpr, NORMALISES: tl.constexpr, KIND: tl.constexpr, CENTRED: tl.constexpr,
    KNOTS: tl.constexpr, STEPS: tl.constexpr, STORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z_at, out_at = z_ptr + image * z_image + voxel * z_voxel, out_ptr + image * out_image + voxel * out_voxel
    z_step, out_step = tl.cast(z_class, tl.int64), tl.cast(out_class, tl.int64)
    top = tl.load(z_at, mask=inside, other=0.0).to(tl.float32)
    bad = ~(tl.abs(top) <= LARGEST_LOGIT)
    rival, winner = top, tl.zeros([BLOCK], tl.int32)
    for c in tl.range(1, C, loop_unroll_factor=4):
        z = tl.load(z_at + c * z_step, mask=inside, other=0.0).to(tl.float32)
        bad = bad | ~(tl.abs(z) <= LARGEST_LOGIT)
        above = z > top
        rival = tl.where(above, top, rival)  # the best of the classes before the winner
        top = tl.where(above, z, top)
        winner = tl.where(above, c, winner)
    if tl.max(bad.to(tl.int32), 0) > 0:
        tl.store(bad_ptr, 1)
    centre = top if CENTRED else tl.zeros([BLOCK], tl.float32)

    first, second = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    if KIND == 3:
        first += tl.load(weight_ptr)
    elif KIND > 0:
        beta = tl.load(numbers_ptr)
        for c in tl.range(C, loop_unroll_factor=4):
            gap = tl.load(z_at + c * z_step, mask=inside, other=0.0).to(tl.float32) - top
            second += tl.exp(gap)
            if KIND == 1:
                first += tl.exp(gap * beta)
        if KIND == 1:
            first = tl.load(numbers_ptr + 1) - tl.log(first)
            second = tl.load(numbers_ptr + 2) - tl.log(second)
        else:
            first = tl.log(second)

    own = _score(top - centre, winner, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND, KNOTS, STEPS)
    log = own
    if NORMALISES:
        most = own
        if not KEEPS:
            for c in tl.range(C, loop_unroll_factor=4):
                gap = tl.load(z_at + c * z_step, mask=inside, other=0.0).to(tl.float32) - centre
                s = _score(gap, c, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND, KNOTS, STEPS)
                most = tl.maximum(most, s)
        if KIND == 1:
            log = tl.zeros([BLOCK], tl.float32)  # probabilities that are mixed sum to one
        else:
            total = tl.zeros([BLOCK], tl.float32)
            for c in tl.range(C, loop_unroll_factor=4):
                gap = tl.load(z_at + c * z_step, mask=inside, other=0.0).to(tl.float32) - centre
                s = _score(gap, c, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND, KNOTS, STEPS)
                if KIND == 2:
                    s = tl.where(winner == c, s, tl.minimum(s, own - lead))
                    if STORED:  # looking up once is enough: the same thread reads it again
                        tl.store(out_at + c * out_step, s, mask=inside)
                total += tl.exp(s - most)
            log = most + tl.log(total)
    ahead = (own - log).to(out_ptr.dtype.element_ty).to(tl.float32)
    limit = (ahead + ahead * lead).to(out_ptr.dtype.element_ty).to(tl.float32)
    lost = voxel < 0
    if KEEPS and NORMALISES:
        s = _score(rival - centre, 0, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND, KNOTS, STEPS)
        s = tl.minimum(s, own - lead) if KIND == 2 else s
        lost = (winner > 0) & ((s - log).to(out_ptr.dtype.element_ty).to(tl.float32) >= ahead)
    for c in tl.range(C, loop_unroll_factor=4):
        if STORED:
            s = tl.load(out_at + c * out_step, mask=inside, other=0.0)
        else:
            gap = tl.load(z_at + c * z_step, mask=inside, other=0.0).to(tl.float32) - centre
            s = _score(gap, c, first, second, weight_ptr, bias_ptr, numbers_ptr, lead, KIND, KNOTS, STEPS)
            if KIND == 2:
                s = tl.where(winner == c, s, tl.minimum(s, own - lead))
        if NORMALISES:
            s = (s - log).to(out_ptr.dtype.element_ty).to(tl.float32)
            s = tl.where(lost & (winner != c), tl.minimum(s, limit), s)
        tl.store(out_at + c * out_step, s.to(out_ptr.dtype.element_ty), mask=inside)


def apply_by_class(
    plan: FusedPlan, logits: Tensor, out: Tensor, bad: Tensor, tables: list[Tensor], where: tuple, normalises: bool
) -> None:
    """Fill `out` ``(images, C, n)``; `where` says sizes and strides."""
    images, classes, voxels = logits.shape
    grid = (triton.cdiv(voxels, BLOCK), images)
    points, heights, numbers, knots = _class_tables(plan.form, tables, classes)
    # In place, what is stored on the way would be read as logits.
    stored = plan.form == "table" and normalises and out.dtype == torch.float32 and out.data_ptr() != logits.data_ptr()
    # A diagonal that keeps the decision has one factor and no bias.
    form = "scale" if plan.form == "affine" and plan.keeps else plan.form
    kind = (KINDS.index(form), plan.centre == "top", knots, knots.bit_length(), stored, BLOCK)
    _by_class[grid](
        logits, out, bad, points, heights, numbers, *where, plan.keeps, normalises, *kind, enable_fp_fusion=False
    )


def _class_tables(form: str, tables: list[Tensor], classes: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return points or scales, heights or biases, numbers, and how many points there are."""
    if form == "affine":
        scale, bias = (table.float().contiguous() for table in tables)
        return scale, bias, bias, 0
    if form == "mixture":
        beta, tempered, original, uniform = tables[0].unbind()
        numbers = torch.stack([beta, tempered.log(), original.log(), uniform / classes]).float()
        return numbers, numbers, numbers, 0
    points, heights, numbers = (table.float().contiguous() for table in tables)
    return points, heights, numbers, len(points)
