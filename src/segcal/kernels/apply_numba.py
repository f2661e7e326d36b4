"""Calibrators on the CPU in one pass: read a tile of logits, map it in the first-level cache, write the result.

The forms are those of :mod:`segcal.kernels.plan`; half types are widened before, and everything is computed in float32
or float64. Parts of the voxels are taken in threads, and no result depends on how many there are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.apply_tables import function_tables
from segcal.kernels.apply_tile import (
    affine_tile,
    curves_tile,
    drops_voxel,
    logarithm_tile,
    mixture_tile,
    read_tile,
    subtract_centre,
    table_tile,
    write_tile,
)
from segcal.kernels.jit import SOURCES, compiled
from segcal.kernels.plan import CENTRES, LEAD_UNITS, FusedPlan
from segcal.kernels.reliability_tile import TILE
from segcal.kernels.threads import cut, in_threads


def _make(sources):  # type: ignore[no-untyped-def]
    # The loops live in another file: their text is part of these functions, so that a change of it is noticed.
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
    for number, image in enumerate(logits):
        context = () if around is None else (around[number].to(logits.dtype).contiguous().numpy(),)
        # What is not in a row is written to new memory first; else the result may be the logits themselves.
        direct = out[number] if out[number].is_contiguous() else torch.empty_like(image)
        _apply(loop, (*context, *given), image.contiguous(), direct, np.array([plan.keeps, normalises]))
        if direct is not out[number]:
            out[number].copy_(direct)


def _prepared(plan: FusedPlan, dtype: torch.dtype, classes: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Return the loop of a form, and what it wants to know of the map."""
    tables = [table.to(dtype).contiguous().numpy() for table in plan.tables]
    if plan.form == "affine":
        weight, bias = tables
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


def _apply(loop: Callable[..., None], given: tuple[Any, ...], logits: Tensor, out: Tensor, flags: np.ndarray) -> None:
    """Map one image ``(C, n)``, whose voxels lie in a row."""
    raw, result = logits.numpy(), out.numpy()
    classes, kind = raw.shape[0], raw.dtype
    ends = cut(raw.shape[1], TILE)
    lead = kind.type(LEAD_UNITS * torch.finfo(logits.dtype).eps)

    def apply(part: int) -> None:
        scratch = (
            *(np.zeros((classes, TILE), kind) for _ in range(2)),
            *(np.zeros(TILE, kind) for _ in range(2)),
            *(np.zeros(TILE, np.int32) for _ in range(2)),
        )
        loop(raw, result, ends[part], ends[part + 1], *given, flags, lead, scratch)

    in_threads(apply, len(ends) - 1)
