"""Mixtures and tables of :mod:`segcal.kernels.plan` on a CUDA device.

They need no sorting: they are one function of the gap, made of steps that are monotone in floating point.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.apply_tables import FIRST, PLACES, SHIFT
from segcal.kernels.exponential import FLOOR_32
from segcal.kernels.triton_arithmetic import exp_below_zero, log_normal
from segcal.kernels.triton_classes import largest, look_up, look_up_four, read_classes, write_classes

_SHIFT, _FIRST, _PLACES = tl.constexpr(SHIFT), tl.constexpr(FIRST), tl.constexpr(PLACES)
_FLOOR = tl.constexpr(float(FLOOR_32))


@triton.jit
def mixture(
    z_ptr, out_ptr, bad_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
):  # fmt: skip
    """Take the logarithm of a mixture of probabilities."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    beta = tl.load(numbers_ptr)
    tempered, plain = (), ()
    first, second = 0.0 * top, 0.0 * top
    for k in tl.static_range(C):
        gap = z[k] - top
        t, e = exp_below_zero(gap * beta), exp_below_zero(gap)
        first += t
        second += e
        tempered, plain = tempered + (t,), plain + (e,)
    first, second = tl.load(numbers_ptr + 1) / first, tl.load(numbers_ptr + 2) / second
    uniform = tl.load(numbers_ptr + 3)
    s = ()
    for k in tl.static_range(C):
        s = s + (log_normal(tempered[k] * first + plain[k] * second + uniform),)
    own = largest(s, C)
    # Probabilities that are mixed sum to one.
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, 0.0 * top, winner, lead, C, KEEPS, NORMALISES)


@triton.jit
def table_of_function(
    z_ptr, out_ptr, bad_ptr, points_ptr, pieces_ptr, guess_ptr, numbers_ptr, n, z_image, z_class, z_voxel, out_image,
    out_class, out_voxel, lead, C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr,
):  # fmt: skip
    """Take the logarithm of a table at a probability."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    e = ()
    total = 0.0 * top
    for k in tl.static_range(C):
        gap = z[k] - top
        one = tl.where(gap > _FLOOR, exp_below_zero(gap), 0.0)
        total += one
        e = e + (one,)
    inverse = 1.0 / tl.maximum(total, 1.0)  # less only of what is refused, of which tables must not be read either
    p, below = (), ()
    for k in tl.static_range(C):
        q = e[k] * inverse
        low_half = q < 0.5
        place = tl.maximum(tl.where(low_half, q, 1.0 - q).to(tl.int32, bitcast=True) >> _SHIFT, _FIRST)
        place = tl.where(low_half, place, 2 * (_PLACES + _FIRST) - 1 - place)
        p, below = p + (q,), below + (look_up(guess_ptr - _FIRST + place),)
    step = tl.load(guess_ptr + 2 * _PLACES)
    while step > 0:
        nearer = ()
        for k in tl.static_range(C):
            point = look_up(points_ptr + (step - 1) + below[k])
            nearer = nearer + (tl.where(point < p[k], below[k] + step, below[k]),)
        below = nearer
        step = step // 2
    values = ()
    slope_of_all, floor = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    for k in tl.static_range(C):
        low, slope, low_height, high_height = look_up_four(pieces_ptr + 4 * below[k])
        # Rounding may lift the end of a piece above the start of the next.
        found = tl.minimum(tl.maximum(p[k] - low, 0.0) * slope + low_height, high_height)
        values = values + (tl.maximum(found + slope_of_all * p[k], floor),)
    most, total = largest(values, C), 0.0 * top
    s = ()
    for k in tl.static_range(C):
        total += values[k]
        s = s + (log_normal(values[k]),)
    own, log = log_normal(most), log_normal(total)
    if not NORMALISES:  # of equal values, the winner's is to be above
        cut = ()
        for k in tl.static_range(C):
            cut = cut + (tl.where(winner == k, s[k], tl.minimum(s[k], own - lead)),)
        s = cut
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, 2 if KEEPS else 0, NORMALISES)
