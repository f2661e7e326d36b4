"""Calibrators on a CUDA device in one pass: a thread reads all classes of its voxels, maps them, writes them.

The forms are those of :mod:`segcal.kernels.plan`. Weights of maps that differ by winner lie with the winners next to
each other. So voxels of a warp with different winners still read from one line, and four in a row. Where there are many
classes, scores of matrices and curves are computed twice, in loops, and not held. Drops are sorted by a network of
comparisons, and ranks are found by comparing each class with each. Mixtures and tables need no sorting: they are one
function of the gap, made of steps that are monotone in floating point. Curves change with what is around. What is
behind of a ramp is a share, from 0 to 1, which the device takes in one step.

All types are computed in float32; the result is rounded to the type that is asked for, and the winner's lead is given
in it.
"""
# ruff: noqa: RUF005 - of tuples, Triton knows sums only
# mypy: disable-error-code="assignment, misc, var-annotated"
# A tuple grows in loops that are unrolled.

import triton
import triton.language as tl

from segcal.kernels.exponential import FLOOR_32
from segcal.kernels.plan import AT_ONE, FIRST, PLACES, SHIFT
from segcal.kernels.triton_classes import (
    MOST_UNROLLED,
    exp_below_zero,
    largest,
    load_masked,
    log_normal,
    log_sum,
    look_up,
    look_up_four,
    read_classes,
    scan_classes,
    share_of,
    weighted_sum,
    write_classes,
    write_twice,
)

_WHOLE, _FLOOR = tl.constexpr(2.0**23), tl.constexpr(float(FLOOR_32))
_AT_ONE = tl.constexpr(AT_ONE)
_SHIFT, _FIRST, _PLACES = tl.constexpr(SHIFT), tl.constexpr(FIRST), tl.constexpr(PLACES)


@triton.jit
def apply_affine(
    z_ptr, out_ptr, bad_ptr, weight_ptr, bias_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr, CENTRE: tl.constexpr,
    E: tl.constexpr, STEP: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Apply the matrix of every voxel's map; a diagonal, given as parameters are, where there are none."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    x, more = (top,), 0.0  # the first is the place of the bias
    if CENTRE == 2:
        more = log_sum(z, top, C)
    for k in tl.static_range(C):
        if CENTRE == 0:
            x = x + (z[k],)
        elif CENTRE == 3:
            x = x + (z[k] - z[C - 1],)
        else:
            x = x + ((z[k] - top) - more,)
    rows = weight_ptr + 4 * (winner if E > 1 else 0 * winner)
    start = image * out_image + voxel * out_voxel
    if E > 0 and C > MOST_UNROLLED:
        write_twice(out_ptr, start, out_class, inside, _row, (rows, x), (C, E), winner, lead, C, KEEPS, NORMALISES)
        return
    s = ()
    for k in tl.static_range(C):
        if E == 0:
            score = x[k + 1] * tl.load(weight_ptr + k * STEP).to(tl.float32)
            s = s + (score + tl.load(bias_ptr + k).to(tl.float32) if BIASED else score,)
        else:
            s = s + (_row(k, (rows, x), (C, E)),)
    own = largest(s, C)
    log = own + log_sum(s, own, C)
    write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, KEEPS, NORMALISES)


@triton.jit
def _row(k, given, SIZES: tl.constexpr):
    """Return what the row of a matrix makes of a voxel."""
    rows, x = given
    C: tl.constexpr = SIZES[0]
    E: tl.constexpr = SIZES[1]
    return weighted_sum(rows + k * (((C + 4) // 4) * E * 4), x, C + 1, E)


@triton.jit
def _exchanged(values, i: tl.constexpr, j: tl.constexpr):
    """Return values with the smaller of two first."""
    low, high = tl.minimum(values[i], values[j]), tl.maximum(values[i], values[j])
    return values[:i] + (low,) + values[i + 1 : j] + (high,) + values[j + 1 :]


@triton.jit
def _halved(values, bit, N: tl.constexpr):
    """Return of every two neighbours the second where a bit is set."""
    found = ()
    for i in tl.static_range(N // 2):
        found = found + (tl.where(bit, values[2 * i + 1], values[2 * i]),)
    if N % 2 == 1:
        found = found + (values[N - 1],)
    return found


@triton.jit
def apply_drops(
    z_ptr, out_ptr, bad_ptr, weight_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr, NETWORK: tl.constexpr,
):  # fmt: skip
    """Map the sorted gaps by the matrix of the winner, and give every class what its rank has."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    gaps, ranks = (), ()
    for k in tl.static_range(C):
        gaps, ranks = gaps + (top - z[k],), ranks + (0.0 * top + k,)
    for i in tl.static_range(C - 1):
        rank, after = ranks[i], ()
        for j in tl.static_range(i + 1, C):
            above = (z[j] > z[i]).to(tl.float32)
            rank += above
            after = after + (ranks[j] - above,)
        ranks = ranks[:i] + (rank,) + after
    for pair in tl.static_range(len(NETWORK) // 2):
        gaps = _exchanged(gaps, NETWORK[2 * pair], NETWORK[2 * pair + 1])
    least = 0.0 * top
    of_rank = (least,)
    for r in tl.static_range(1, C):
        drop = weighted_sum(weight_ptr + ((r - 1) * ((C + 3) // 4) * C + winner) * 4, gaps, C, C)
        least = tl.maximum(least, drop)  # rounding need not be monotone
        of_rank = of_rank + (-least,)
    s = ()
    for k in tl.static_range(C):
        rank = (ranks[k] + _WHOLE).to(tl.int32, bitcast=True)  # whose last bits are the number
        found = _halved(of_rank, (rank & 1) != 0, C)
        found = _halved(found, (rank & 2) != 0, (C + 1) // 2)
        found = _halved(found, (rank & 4) != 0, (C + 3) // 4)
        found = _halved(found, (rank & 8) != 0, (C + 7) // 8)
        found = _halved(found, (rank & 16) != 0, (C + 15) // 16)
        s = s + (found[0],)
    own = largest(s, C)
    log = own + log_sum(s, own, C)
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, KEEPS, NORMALISES)


@triton.jit
def apply_mixture(
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
def apply_table(
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


@triton.jit
def _curve(k, given, SIZES: tl.constexpr):
    """Return how much lower a class is than the winner, by a curve of its gap."""
    z, top, winner, pairs_ptr, ramps_ptr, slopes = given
    C: tl.constexpr = SIZES[0]
    RAMPS: tl.constexpr = SIZES[1]
    WINNERS: tl.constexpr = SIZES[2]
    GROUP: tl.constexpr = SIZES[3]
    GROUPS: tl.constexpr = SIZES[4]
    if C > MOST_UNROLLED:
        begin, stride, inside = z
        gap = top - load_masked(begin + tl.cast(k, tl.int64) * stride, inside)
    else:
        gap = top - z[k]
    score = 0.0 * top
    fours = (0.0, 0.0, 0.0, 0.0)
    for g in tl.static_range(GROUPS):
        if WINNERS > 0 and g % 4 == 0:
            of = winner if WINNERS > 1 else 0 * winner
            fours = look_up_four(pairs_ptr + ((k * ((GROUPS + 3) // 4) + g // 4) * WINNERS + of) * 4)
        for j in tl.static_range(g * GROUP, (g + 1) * GROUP):
            if j < RAMPS:
                start, rate, width, _ = look_up_four(ramps_ptr + 4 * j)
                ramp = share_of(gap, rate, start) if j + 1 < RAMPS else tl.maximum(gap + start, 0.0)
                slope = tl.fma(fours[g % 4], width, slopes[j]) if WINNERS > 0 else slopes[j]
                score = tl.fma(-slope, ramp, score)
    return score


@triton.jit
def _shared_slopes(around_ptr, slopes_ptr, pieces_ptr, n, voxel, inside, zero, RAMPS: tl.constexpr,
                   OWNERS: tl.constexpr):  # fmt: skip
    """Return the slope of every ramp that all classes share, which changes with what is around, times its width."""
    shares = ()
    for t in tl.static_range(len(OWNERS)):
        u = load_masked(around_ptr + tl.cast(n, tl.int64) * OWNERS[t] + voxel, inside)
        shares = shares + (share_of(u, tl.load(pieces_ptr + 2 * t + 1), tl.load(pieces_ptr + 2 * t)),)
    found = ()
    for j in tl.static_range(0, RAMPS, 4):
        first, second, third, fourth = look_up_four(slopes_ptr + j)
        first, second, third, fourth = zero + first, zero + second, zero + third, zero + fourth
        for t in tl.static_range(len(OWNERS)):
            a, b, c, d = look_up_four(slopes_ptr + (1 + t) * ((RAMPS + 3) // 4 * 4) + j)
            first, second = tl.fma(shares[t], a, first), tl.fma(shares[t], b, second)
            third, fourth = tl.fma(shares[t], c, third), tl.fma(shares[t], d, fourth)
        found = found + (
            tl.maximum(first, 0.0),
            tl.maximum(second, 0.0),
            tl.maximum(third, 0.0),
            tl.maximum(fourth, 0.0),
        )
    return found


@triton.jit
def apply_curves(
    z_ptr, out_ptr, bad_ptr, around_ptr, ramps_ptr, slopes_ptr, pieces_ptr, pairs_ptr, n, z_image, z_class, z_voxel,
    out_image, out_class, out_voxel, lead, C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr,
    NORMALISES: tl.constexpr, RAMPS: tl.constexpr, CONTEXTS: tl.constexpr, OWNERS: tl.constexpr, WINNERS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Lower every class by a curve of its gap, which changes with what is around."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    if C > MOST_UNROLLED:
        z = (z_ptr + image * z_image + voxel * z_voxel, z_class, inside)
        top, winner = scan_classes(z[0], z_class, bad_ptr, inside, C)
    else:
        z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    around = around_ptr + image * CONTEXTS * n
    slopes = _shared_slopes(around, slopes_ptr, pieces_ptr, n, voxel, inside, 0.0 * top, RAMPS, OWNERS)
    given = (z, top, winner, pairs_ptr, ramps_ptr, slopes)
    sizes: tl.constexpr = (C, RAMPS, WINNERS, GROUP, GROUPS)
    start = image * out_image + voxel * out_voxel
    if C > MOST_UNROLLED:
        write_twice(out_ptr, start, out_class, inside, _curve, given, sizes, winner, lead, C, KEEPS, NORMALISES)
    else:
        s = ()
        for k in tl.static_range(C):
            s = s + (_curve(k, given, sizes),)
        own = largest(s, C)
        log = own + log_sum(s, own, C)
        write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, KEEPS, NORMALISES)


@triton.jit
def _soft_plus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _layer(values, rows_ptr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, LAST: tl.constexpr):
    """Return what a layer makes of the first of some values; a row is its bias, then its weights."""
    made = ()
    for row in tl.static_range(OUTPUTS):
        first = rows_ptr + row * (INPUTS + 1)
        total = 0.0 * values[0] + tl.load(first)
        for k in tl.static_range(INPUTS):
            total += values[k] * tl.load(first + 1 + k)
        made = made + (total if LAST else tl.maximum(total, 0.0),)
    return made


@triton.jit
def apply_network(
    z_ptr, out_ptr, bad_ptr, weight_ptr, n, z_image, z_class, z_voxel, out_image, out_class, out_voxel, lead,
    C: tl.constexpr, BLOCK: tl.constexpr, KEEPS: tl.constexpr, NORMALISES: tl.constexpr, NETWORK: tl.constexpr,
    LAYERS: tl.constexpr, STARTS: tl.constexpr,
):  # fmt: skip
    """Divide the gaps by a temperature, which a network makes of the largest log-probabilities, in descending order."""
    image, voxel = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < n
    z, top, winner = read_classes(z_ptr, bad_ptr, image * z_image + voxel * z_voxel, z_class, inside, C)
    gaps, log = (), log_sum(z, top, C)
    for k in tl.static_range(C):
        gaps = gaps + (top - z[k],)
    for pair in tl.static_range(len(NETWORK) // 2):
        gaps = _exchanged(gaps, NETWORK[2 * pair], NETWORK[2 * pair + 1])
    values = ()
    for k in tl.static_range(C):
        values = values + (-gaps[k] - log,)
    for layer in tl.static_range(len(STARTS)):
        start, last = weight_ptr + STARTS[layer], layer + 1 == len(STARTS)
        values = _layer(values, start, LAYERS[layer], LAYERS[layer + 1], last)
    inverse = 1.0 / (1.0 + (_soft_plus(values[0] + _AT_ONE) - _soft_plus(0.0 * top + _AT_ONE)))
    s = ()
    for k in tl.static_range(C):
        s = s + ((z[k] - top) * inverse,)
    own = largest(s, C)
    log = own + log_sum(s, own, C)
    start = image * out_image + voxel * out_voxel
    write_classes(out_ptr, start, out_class, inside, s, own, log, winner, lead, C, KEEPS, NORMALISES)
