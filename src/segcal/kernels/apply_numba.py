"""Calibrators on the CPU in one pass: read a tile of logits, map it in the first-level cache, write the result.

The forms are those of :mod:`segcal.kernels.plan`; half types are widened before, and everything is computed in float32
or float64. Parts of the voxels are taken in threads, and no result depends on how many there are.
"""

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
    def apply_function(raw, out, begin, end, is_table, table, guesses, numbers, flags, lead, scratch):  # type: ignore[no-untyped-def]
        """Map the probabilities of voxels by one function, in float32: a mixture or a table."""
        x, y, top, sums, winner, best = scratch
        more = np.zeros_like(top)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            read_tile(raw, start, x, top, winner, n)
            subtract_centre(x, top, winner, 1, sums, n)
            if is_table:
                table_tile(x, y, sums, table, guesses, numbers, n)
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
    """Fill `out` ``(C, n)``, which may be `logits` ``(C, n)`` itself; both float32 or both float64, voxels in a row."""
    raw, result = logits.numpy(), out.numpy()
    ends = cut(raw.shape[1], TILE)
    kind = raw.dtype
    tables = [table.to(logits.dtype).contiguous().numpy() for table in plan.tables]
    flags = np.array([plan.keeps, normalises])
    lead = kind.type(LEAD_UNITS * torch.finfo(logits.dtype).eps)
    if plan.form in ("mixture", "table"):
        table, guesses, numbers = (each.numpy() for each in function_tables(plan.form, list(plan.tables), len(raw))[0])
        function = table, guesses.astype(np.int32), numbers  # a mixture has no guesses

    def apply(part: int) -> None:
        classes = raw.shape[0]
        scratch = (
            *(np.zeros((classes, TILE), kind) for _ in range(2)),
            *(np.zeros(TILE, kind) for _ in range(2)),
            *(np.zeros(TILE, np.int32) for _ in range(2)),
        )
        where = (raw, result, ends[part], ends[part + 1])
        if plan.form == "affine":
            weight, bias = tables
            diagonal = weight.ndim == 1
            # Columns first: a voxel's result is a sum of columns, and these lie in a row.
            columns = weight.reshape(1, 1, -1) if diagonal else np.ascontiguousarray(weight.swapaxes(1, 2))
            apply_affine(*where, CENTRES.index(plan.centre), columns, bias, diagonal, flags, lead, scratch)
        elif plan.form == "curves":
            assert around is not None
            units, spans = np.array([0, 1, np.inf], kind), np.array(plan.spans, np.int64)
            given = around.to(logits.dtype).contiguous().numpy()
            apply_curves(*where, given, tuple(tables), spans, plan.group, units, flags, lead, scratch)
        elif plan.form == "drops":
            weight, bias = tables
            apply_drops(*where, np.ascontiguousarray(weight.swapaxes(1, 2)), bias, flags, lead, scratch)
        else:
            apply_function(*where, plan.form == "table", *function, flags, lead, scratch)

    in_threads(apply, len(ends) - 1)
