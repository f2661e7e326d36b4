"""Launches of the kernels of :mod:`segcal.kernels.apply_triton`: tables as they read them, and where they write."""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from segcal.kernels import apply_triton as kernels
from segcal.kernels import plan as forms
from segcal.kernels.plan import CENTRES, LEAD_UNITS, FusedPlan
from segcal.kernels.triton_classes import MOST_UNROLLED

WARPS = 4
MOST_TWICE = 32  # classes of which a thread has two voxels, where one map serves both


class Prepared(NamedTuple):
    """A kernel and what it is given beside the logits.

    Attributes:
        kernel: of the form of the plan.
        tables: as it reads them.
        sizes: of the tables, known to the compiler.
        keeps: whether the decision must survive the rounding of the result.
        fused: whether multiplications and additions may be one.
        one_map: whether the same numbers are used for all voxels.
        registers: of a thread; with more, which the compiler would take, too few threads run. None to leave it to it.
    """

    kernel: Any
    tables: tuple[Tensor, ...]
    sizes: tuple[Any, ...]
    keeps: bool
    fused: bool = True
    one_map: bool = False
    registers: int | None = None


def prepare(plan: FusedPlan, logits: Tensor) -> Prepared:
    """Return the kernel of a plan with its tables, for logits ``(images, C, n)``.

    Tables on the host are prepared once. Prepared tables are keyed by all bytes of their parameters, so no change of
    parameters can be missed.
    """
    there, classes = logits.device, logits.shape[1]
    if plan.form == "affine" and plan.tables[0].ndim == 1:
        given = [table.to(there) for table in plan.tables]
        sizes = (CENTRES.index(plan.centre), 0, given[0].stride(0), len(given) > 1)
        return Prepared(kernels.apply_affine, (given[0], given[-1]), sizes, plan.keeps, one_map=True)
    if all(table.device.type == "cpu" for table in plan.tables):
        held = tuple((table.shape, table.double().numpy().tobytes()) for table in plan.tables)
        return _prepared_once(plan._replace(tables=()), held, classes, there)
    return _prepared(plan, [table.to(there) for table in plan.tables], classes)


@functools.lru_cache(maxsize=32)
def _prepared_once(
    plan: FusedPlan, held: tuple[tuple[torch.Size, bytes], ...], classes: int, there: torch.device
) -> Prepared:
    """Return a kernel with tables of these shapes and bytes."""
    values = [torch.from_numpy(np.frombuffer(numbers).copy()).reshape(shape) for shape, numbers in held]
    prepared = _prepared(plan, values, classes)
    return prepared._replace(tables=tuple(table.to(there) for table in prepared.tables))


def _prepared(plan: FusedPlan, tables: list[Tensor], classes: int) -> Prepared:
    if plan.form == "curves":
        by_winner = len(tables[-1]) > 0 and classes <= MOST_UNROLLED.value
        registers = max(72, 8 * triton.cdiv(5 * classes, 8)) if by_winner else None
        return Prepared(kernels.apply_curves, *forms.curve_tables(plan, tables), plan.keeps, registers=registers)
    if plan.form == "drops":
        return Prepared(
            kernels.apply_drops, (forms.drop_tables(tables),), (forms.sorting_network(classes),), plan.keeps
        )
    if plan.form == "network":
        numbers, layers, starts = forms.network_tables(tables)
        return Prepared(kernels.apply_network, (numbers,), (forms.sorting_network(classes), layers, starts), plan.keeps)
    if plan.form == "affine":
        weights, maps = forms.affine_tables(tables), len(tables[0])
        sizes = (CENTRES.index(plan.centre), maps, 0, True)
        return Prepared(kernels.apply_affine, (weights, weights), sizes, plan.keeps, one_map=maps < 2)
    (table, guesses, numbers), knots = forms.function_tables(plan.form, tables, classes)
    if plan.form == "mixture":
        numbers = torch.cat([numbers[:1], numbers[1:] / tables[0][1:].sum().float()])  # weights need not sum to one
        return Prepared(kernels.apply_mixture, (numbers,), (), plan.keeps, fused=False)
    return Prepared(kernels.apply_table, (*forms.searched(table, knots), guesses, numbers), (), plan.keeps, fused=False)


def launch(
    prepared: Prepared, logits: Tensor, out: Tensor, bad: Tensor, around: Tensor | None, normalises: bool
) -> None:
    """Fill `out` ``(images, C, n)``, which may be `logits` itself, and `bad` where logits cannot be computed with."""
    images, classes, voxels = logits.shape
    block = 32 * WARPS * (2 if prepared.one_map and classes <= MOST_TWICE else 1)
    context = () if around is None else (around.float().contiguous(),)
    prepared.kernel[triton.cdiv(voxels, block), images](
        logits, out, bad, *context, *prepared.tables, voxels, *logits.stride(), *out.stride(),
        LEAD_UNITS * torch.finfo(out.dtype).eps, classes, block, prepared.keeps, normalises, *prepared.sizes,
        num_warps=WARPS, enable_fp_fusion=prepared.fused, maxnreg=prepared.registers,
    )  # fmt: skip


def apply_plan(plan: FusedPlan, logits: Tensor, out: Tensor, around: Tensor | None, normalises: bool) -> bool:
    """Fill `out` ``(images, C, n)``, which may be `logits` itself; return whether all logits can be computed with."""
    if logits.numel() == 0:
        return True
    with torch.cuda.device_of(logits):
        bad = torch.zeros(1, dtype=torch.int32, device=logits.device)
        launch(prepare(plan, logits), logits, out, bad, around, normalises)
        return not bool(bad)
