"""Calibrators on the CPU in one pass: read a tile of logits, map it in the first-level cache, write the result.

The forms are those of :mod:`segcal.kernels.plan`; half types are widened before, and everything is computed in float32
or float64. Blocks of voxels are taken in threads, and no result depends on how many there are. Rows of a tile are
voxels, so that loops over them become vector instructions. Where the voxels of a tile differ in their winner, each is
taken alone, with its classes in a row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.exponential import FLOOR_32, ONE_32, bits_of_single, exp_below_zero, log1p_above_zero
from segcal.kernels.loops import SOURCES, TILE, compiled, find_winner, in_parts, part
from segcal.kernels.plan import CENTRES, FIRST, LEAD_UNITS, PLACES, SHIFT, FusedPlan, function_tables

ZERO = np.float32(0)


@part
def read_tile(raw, start, x, top, winner, n):  # type: ignore[no-untyped-def]
    """Read logits, and find the largest of every voxel and its class."""
    for c in range(x.shape[0]):
        x[c, :n] = raw[c, start : start + n]
    find_winner(x, top, winner, n)


@part
def subtract_centre(x, top, first, centre, sums, n):  # type: ignore[no-untyped-def]
    """Take the centre of every voxel from its logits: 1, the largest, of `first`; 2, the free energy; 3, the last."""
    classes = x.shape[0]
    if centre == 1 or centre == 2:
        for c in range(classes):
            row = x[c]
            for v in range(n):
                row[v] -= top[v]
    if centre == 2:
        _add_exponentials(x, first, sums, n)
    if centre == 3:
        for v in range(n):
            sums[v] = x[classes - 1, v]
    if centre >= 2:
        for c in range(classes):
            row = x[c]
            for v in range(n):
                row[v] -= sums[v]


@part
def _add_exponentials(x, first, sums, n):  # type: ignore[no-untyped-def]
    """Set `sums` to log of the summed exponentials of rows in which class `first` is the largest, with zero."""
    zero = x[0, 0] - x[0, 0]
    sums[:n] = zero
    for c in range(x.shape[0]):
        row, code = x[c], np.int32(c)
        for v in range(n):
            e = exp_below_zero(row[v])
            sums[v] += e if first[v] != code else zero
    for v in range(n):
        sums[v] = log1p_above_zero(np.float64(sums[v]))


@part
def _all_same(winner, n):  # type: ignore[no-untyped-def]
    """Return whether all voxels have one winner."""
    differ = 0
    for v in range(1, n):
        differ += winner[v] != winner[0]
    return differ == 0


@part
def affine_tile(x, y, winner, weight, bias, n):  # type: ignore[no-untyped-def]
    """Set y to W x + b of each voxel's map; `weight` is ``(maps, column, row)``."""
    classes = x.shape[0]
    if len(weight) == 1 or _all_same(winner, n):
        e = 0 if len(weight) == 1 else winner[0]
        for c in range(classes):
            row, start = y[c], bias[e, c]
            for v in range(n):
                row[v] = start
            for d in range(classes):
                factor, column = weight[e, d, c], x[d]
                if factor != 0:
                    for v in range(n):
                        row[v] += factor * column[v]
        return
    for v in range(n):
        e = winner[v]
        own = bias[e].copy()
        for d in range(classes):
            value, column = x[d, v], weight[e, d]
            for c in range(classes):
                own[c] += value * column[c]
        for c in range(classes):
            y[c, v] = own[c]


@part
def curves_tile(x, y, around, start, winner, slope, own, tables, spans, group, units, n):  # type: ignore[no-untyped-def]
    """Set y to minus the sum of curves of the gaps; `x` holds logits minus the largest."""
    knots, base, hats, hat_knots, of_pair = tables
    ramps, classes = len(base), x.shape[0]
    zero, one, infinity = units[0], units[1], units[2]
    y[:, :n] = zero
    for j in range(ramps):
        for v in range(n):
            slope[v] = base[j]
        first = 0
        for k in range(len(spans)):
            for v in range(n):
                slope[v] += hats[first, j]
            for h in range(first, first + spans[k] - 1):
                low, width, step = hat_knots[h], hat_knots[h + 1] - hat_knots[h], hats[h + 1, j] - hats[h, j]
                for v in range(n):
                    share = min(max((around[k, start + v] - low) / width, zero), one)
                    slope[v] += share * step
            first += spans[k]
        low = knots[j]
        width = knots[j + 1] - knots[j] if j < ramps - 1 else infinity
        if of_pair.size and j % group == 0:
            for v in range(n):
                row = of_pair[winner[v] if len(of_pair) > 1 else 0]
                for c in range(classes):
                    own[c, v] = max(row[c, j // group], zero)
        for v in range(n):
            slope[v] = max(slope[v], zero)
        for c in range(classes):
            gaps, result, more = x[c], y[c], own[c]
            if of_pair.size:
                for v in range(n):
                    result[v] -= (slope[v] + more[v]) * min(max(-gaps[v] - low, zero), width)
            else:
                for v in range(n):
                    result[v] -= slope[v] * min(max(-gaps[v] - low, zero), width)


@part
def _sort_voxel(x, v, values, order):  # type: ignore[no-untyped-def]
    """List the logits of a voxel in descending order, of equal ones the lower index first."""
    for c in range(x.shape[0]):
        value, k = x[c, v], c
        while k > 0 and values[k - 1] < value:
            values[k] = values[k - 1]
            order[k] = order[k - 1]
            k -= 1
        values[k] = value
        order[k] = c


@part
def drops_voxel(x, y, v, weight, bias, values, order, own):  # type: ignore[no-untyped-def]
    """Set y from the drops between neighbours in descending order; `weight` is ``(winner, column, row)``."""
    _sort_voxel(x, v, values, order)
    e, size = order[0], len(own)
    for k in range(size):
        own[k] = bias[e, k]
    for j in range(size):
        gap, column = values[j] - values[j + 1], weight[e, j]
        if gap != 0:
            for k in range(size):
                own[k] += gap * column[k]
    score = lowest = values[0] - values[0]
    y[e, v] = lowest
    for k in range(size):
        score -= own[k]
        lowest = min(lowest, score)  # rounding need not be monotone
        y[order[k + 1], v] = lowest


@part
def mixture_tile(x, y, sums, more, numbers, n):  # type: ignore[no-untyped-def]
    """Set x and y so that ``x + log y`` is that of tempered, original and uniform probabilities mixed.

    `x` holds logits minus the largest before. Without a uniform term, the term that falls more slowly is taken out of
    the logarithm, since the sum may underflow. Every step is monotone in either case.
    """
    beta, third = numbers[0], numbers[3]
    sums[:n], more[:n] = 0, 0
    for c in range(x.shape[0]):
        row, result = x[c], y[c]
        for v in range(n):
            result[v] = exp_below_zero(beta * row[v])
            sums[v] += result[v]
            more[v] += exp_below_zero(row[v])
    for v in range(n):
        sums[v] = numbers[1] / sums[v]
        more[v] = numbers[2] / more[v]
    if third == 0:
        slow, quick = (sums, more) if beta < 1 else (more, sums)
        least, further = min(beta, ONE_32), abs(beta - ONE_32)
        for c in range(x.shape[0]):
            row, result = x[c], y[c]
            for v in range(n):
                result[v] = slow[v] + quick[v] * exp_below_zero(further * row[v])
                row[v] = least * row[v]
        return
    for c in range(x.shape[0]):
        row, result = x[c], y[c]
        for v in range(n):
            result[v] = (result[v] * sums[v] + exp_below_zero(row[v]) * more[v]) + third
            row[v] = ZERO


@part
def table_tile(x, y, winner, rest, inverse, table, guesses, numbers, wide, n):  # type: ignore[no-untyped-def]
    """Set y to what a table has at each probability, and x to zero; `x` holds logits minus the largest before.

    Only the winner can be near one, where float32 has no digits: it is looked up by itself in the `wide` tables.
    """
    points, heights, ends = wide
    knots = len(points)
    rest[:n] = ZERO
    for c in range(x.shape[0]):
        row, code = x[c], np.int32(c)
        for v in range(n):
            row[v] = exp_below_zero(row[v]) if row[v] > FLOOR_32 else ZERO
            rest[v] += row[v] if winner[v] != code else ZERO
    for v in range(n):
        inverse[v] = ONE_32 / (ONE_32 + rest[v])
    for c in range(x.shape[0]):
        row, result = x[c], y[c]
        for v in range(n):
            p = row[v] * inverse[v]
            below, step = guesses[min(max((bits_of_single(p) >> SHIFT) - FIRST, 0), PLACES - 1)], guesses[2 * PLACES]
            while step > 0:
                if below + step <= knots and table[below + step - 1] < p:
                    below += step
                step //= 2
            right = min(max(below, 1), knots - 1)
            low, slope = table[right - 1], table[right + knots]
            # Rounding may lift the end of a piece above the start of the next.
            found = min(max(p - low, ZERO) * slope + table[right + 2 * knots - 1], table[right + 2 * knots])
            result[v] = max(found + numbers[0] * p, numbers[1])
            row[v] = ZERO
    for v in range(n):
        q = 1.0 / (1.0 + np.float64(rest[v]))
        at = min(max(int(np.searchsorted(points, q)), 1), knots - 1)
        low, width = points[at - 1], points[at] - points[at - 1]
        share = min(max((q - low) / width, 0.0), 1.0) if width > 0 else 1.0
        height = heights[at - 1] + share * (heights[at] - heights[at - 1])
        y[winner[v], v] = max(height + ends[0] * q, ends[1])


@part
def logarithm_tile(x, y, winner, least, n):  # type: ignore[no-untyped-def]
    """Set y to ``x + log y``, in float64, which keeps the order of float32; the winner's is higher by `least`."""
    for c in range(y.shape[0]):
        row, result = x[c], y[c]
        for v in range(n):
            result[v] = row[v] - log1p_above_zero(1.0 / np.float64(result[v]) - 1.0)
    if least > 0:
        for v in range(n):
            own = y[winner[v], v]
            for c in range(y.shape[0]):
                if c != winner[v]:
                    y[c, v] = min(y[c, v], own - least)


@part
def write_tile(out, start, y, winner, top, best, sums, flags, lead, n):  # type: ignore[no-untyped-def]
    """Write scores, normalised if so flagged, with the winner kept where only rounding made it another class."""
    if flags[1]:
        _normalise(y, winner, top, best, sums, flags[0], lead, n)
    for c in range(y.shape[0]):
        out[c, start : start + n] = y[c, :n]


@part
def _normalise(y, winner, top, best, sums, keeps, lead, n):  # type: ignore[no-untyped-def]
    classes = y.shape[0]
    find_winner(y, top, best, n)
    subtract_centre(y, top, best, 2, sums, n)
    if not keeps:
        return
    find_winner(y, top, best, n)
    for v in range(n):
        if best[v] != winner[v]:
            own = y[winner[v], v]
            limit = own + own * lead
            if top[v] <= own - own * lead:
                for c in range(classes):
                    if c != winner[v]:
                        y[c, v] = min(y[c, v], limit)


def _make(sources):  # type: ignore[no-untyped-def]
    # Some loops live in other files: their text is part of these functions, so that a change of it is noticed.
    @compiled
    def apply_affine(raw, out, begin, end, centre, weight, bias, diagonal, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map voxels by an affine map; a diagonal is ``(1, 1, C)``."""
        x, y, top, sums, winner, best = scratch
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            read_tile(raw, start, x, top, winner, n)
            subtract_centre(x, top, winner, centre, sums, n)
            if diagonal:
                for c in range(len(raw)):
                    factor, shift, row, column = weight[0, 0, c], bias[0, c], y[c], x[c]
                    for v in range(n):
                        row[v] = factor * column[v] + shift
            else:
                affine_tile(x, y, winner, weight, bias, n)
            write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_curves(raw, out, begin, end, around, tables, spans, group, units, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map voxels by curves of their gaps, which change with what is around."""
        x, y, top, sums, winner, best = scratch
        own, slope = np.zeros_like(x), np.zeros_like(top)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            read_tile(raw, start, x, top, winner, n)
            subtract_centre(x, top, winner, 1, sums, n)
            curves_tile(x, y, around, start, winner, slope, own, tables, spans, group, units, n)
            write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_function(raw, out, begin, end, is_table, table, guesses, numbers, wide, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map the probabilities of voxels by one function, in float32: a mixture or a table."""
        x, y, top, sums, winner, best = scratch
        more = np.zeros_like(top)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            read_tile(raw, start, x, top, winner, n)
            subtract_centre(x, top, winner, 1, sums, n)
            if is_table:
                table_tile(x, y, winner, sums, more, table, guesses, numbers, wide, n)
            else:
                mixture_tile(x, y, sums, more, numbers, n)
            logarithm_tile(x, y, winner, lead if is_table else 0 * lead, n)
            write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_drops(raw, out, begin, end, weight, bias, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map the drops between classes of voxels in descending order."""
        x, y, top, sums, winner, best = scratch
        values, own, order = np.zeros_like(x[:, 0]), np.zeros_like(bias[0]), np.zeros(len(raw), np.int32)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            read_tile(raw, start, x, top, winner, n)
            for v in range(n):
                drops_voxel(x, y, v, weight, bias, values, order, own)
            write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    return apply_affine, apply_curves, apply_function, apply_drops


apply_affine, apply_curves, apply_function, apply_drops = _make(SOURCES)


def apply_plan(plan: FusedPlan, logits: Tensor, out: Tensor, around: Tensor | None, normalises: bool) -> None:
    """Fill `out` ``(images, C, n)``, which may be `logits` itself; both float32 or both float64."""
    loop, given = _prepared(plan, logits.dtype, logits.shape[1])
    flags, lead = np.array([plan.keeps, normalises]), LEAD_UNITS * torch.finfo(logits.dtype).eps
    for number, image in enumerate(logits):
        context = () if around is None else (around[number].to(logits.dtype).contiguous().numpy(),)
        # What is not in a row is written to new memory first; else the result may be the logits themselves.
        direct = out[number] if out[number].is_contiguous() else torch.empty_like(image)
        raw, result = image.contiguous().numpy(), direct.numpy()
        settings = (*context, *given, flags, raw.dtype.type(lead))
        in_parts(partial(_run, loop, raw, result, settings), raw.shape[1], TILE)
        if direct is not out[number]:
            out[number].copy_(direct)


def _run(
    loop: Callable[..., None], raw: np.ndarray, result: np.ndarray, settings: tuple[Any, ...], begin: int, end: int
) -> None:
    """Map some voxels of one image ``(C, n)``, which lie in a row."""
    scratch = (
        *(np.zeros((len(raw), TILE), raw.dtype) for _ in range(2)),
        *(np.zeros(TILE, raw.dtype) for _ in range(2)),
        *(np.zeros(TILE, np.int32) for _ in range(2)),
    )
    loop(raw, result, begin, end, *settings, scratch)


def _prepared(plan: FusedPlan, dtype: torch.dtype, classes: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Return the loop of a form, and what it wants to know of the map."""
    tables = [table.to(dtype).contiguous().numpy() for table in plan.tables]
    if plan.form == "affine":
        weight, bias = (*tables, np.zeros((1, classes), tables[0].dtype))[:2]
        diagonal = weight.ndim == 1
        # Columns first: a voxel's result is a sum of columns, and these lie in a row.
        columns = weight.reshape(1, 1, -1) if diagonal else np.ascontiguousarray(weight.swapaxes(1, 2))
        return apply_affine, (CENTRES.index(plan.centre), columns, bias, diagonal)
    if plan.form == "curves":
        units, spans = np.array([0, 1, np.inf], tables[0].dtype), np.array(plan.spans, np.int64)
        return apply_curves, (tuple(tables), spans, plan.group, units)
    if plan.form == "drops":
        return apply_drops, (np.ascontiguousarray(tables[0].swapaxes(1, 2)), tables[1])
    function = [table.numpy() for table in function_tables(plan.form, list(plan.tables), classes)[0]]
    wide = tuple(table.double().numpy() for table in plan.tables) if plan.form == "table" else (np.zeros(2),) * 3
    return apply_function, (plan.form == "table", *function, wide)
