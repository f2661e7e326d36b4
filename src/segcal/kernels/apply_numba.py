"""Calibrators on the CPU in one pass: read a tile of logits, map it in the first-level cache, write the result.

The forms are those of :mod:`segcal.kernels.plan`; half types are widened before, and everything is computed in float32
or float64. Parts of the voxels are taken in threads, and no result depends on how many there are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels import apply_tile as tile
from segcal.kernels.loops import SOURCES, compiled, in_parts
from segcal.kernels.plan import CENTRES, LEAD_UNITS, FusedPlan, function_tables
from segcal.kernels.reliability_tile import TILE


def _make(sources):  # type: ignore[no-untyped-def]
    # The loops live in another file: their text is part of these functions, so that a change of it is noticed.
    @compiled
    def apply_affine(raw, out, begin, end, centre, weight, bias, diagonal, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map voxels by an affine map; a diagonal is ``(1, 1, C)``."""
        x, y, top, sums, winner, best = scratch
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            tile.read_tile(raw, start, x, top, winner, n)
            tile.subtract_centre(x, top, winner, centre, sums, n)
            if diagonal:
                for c in range(len(raw)):
                    factor, shift, row, column = weight[0, 0, c], bias[0, c], y[c], x[c]
                    for v in range(n):
                        row[v] = factor * column[v] + shift
            else:
                tile.affine_tile(x, y, winner, weight, bias, n)
            tile.write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_curves(raw, out, begin, end, around, tables, spans, group, units, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map voxels by curves of their gaps, which change with what is around."""
        x, y, top, sums, winner, best = scratch
        own, slope = np.zeros_like(x), np.zeros_like(top)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            tile.read_tile(raw, start, x, top, winner, n)
            tile.subtract_centre(x, top, winner, 1, sums, n)
            tile.curves_tile(x, y, around, start, winner, slope, own, tables, spans, group, units, n)
            tile.write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_function(raw, out, begin, end, is_table, table, guesses, numbers, wide, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map the probabilities of voxels by one function, in float32: a mixture or a table."""
        x, y, top, sums, winner, best = scratch
        more = np.zeros_like(top)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            tile.read_tile(raw, start, x, top, winner, n)
            tile.subtract_centre(x, top, winner, 1, sums, n)
            if is_table:
                tile.table_tile(x, y, winner, sums, more, table, guesses, numbers, wide, n)
            else:
                tile.mixture_tile(x, y, sums, more, numbers, n)
            tile.logarithm_tile(x, y, winner, lead if is_table else 0 * lead, n)
            tile.write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

    @compiled
    def apply_drops(raw, out, begin, end, weight, bias, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map the drops between classes of voxels in descending order."""
        x, y, top, sums, winner, best = scratch
        values, own, order = np.zeros_like(x[:, 0]), np.zeros_like(bias[0]), np.zeros(len(raw), np.int32)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            tile.read_tile(raw, start, x, top, winner, n)
            for v in range(n):
                tile.drops_voxel(x, y, v, weight, bias, values, order, own)
            tile.write_tile(out, start, y, winner, top, best, sums, flags, lead, n)

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
