"""Calibrators in one read and one write of the logits, where a fused kernel serves them.

On the CPU the kernel is compiled by numba, on a CUDA device by Triton. Everything else, such as a calibrator that is
being trained or exported, goes through the tensor operations of the calibrator itself, which both must match.
"""

import functools
import importlib.util
import re
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from segcal.checks import check_finite
from segcal.errors import InputError
from segcal.kernels.plan import FusedPlan
from segcal.numerics import compute_dtype

# A thread of a GPU holds all classes of its voxels, of curves up to some; of forms that multiply or sort, less.
MOST_CLASSES = {"affine": 64, "drops": 32, "mixture": 192, "table": 192, "curves": 512, "network": 32}
MOST_SCALED = 192
MOST_WEIGHTS = 256  # of a network; they are unrolled
MOST_RAMPS, MOST_IMAGES = 32, 65535  # ramps are unrolled; images are an axis of the grid
OLDEST_TRITON = (3, 4)
# What the CPU computes in float64 too. Other forms keep the order by steps that are monotone in float32.
WIDE = ("affine", "drops", "curves")


class Served(NamedTuple):
    """The implementation that computes, and the reason if it is not a fused kernel.

    Attributes:
        by: "numba", "triton", or "torch" for the tensor operations.
        reason: why it is not fused; "" if it is.
    """

    by: Literal["numba", "triton", "torch"]
    reason: str = ""


def served(plan: FusedPlan | None, logits: Tensor, trained: bool) -> Served:
    """Return who computes logits ``(batch, classes, *space)``; `trained` says whether gradients are wanted."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return Served("torch", "a graph of it is being made")
    if trained or is_followed(logits):
        return Served("torch", "gradients are wanted")
    if plan is None:
        return Served("torch", "it has no fused form")
    if logits.device.type not in ("cpu", "cuda"):
        return Served("torch", f"there is no kernel for {logits.device.type}")
    on_cpu = logits.device.type == "cpu"
    if not plan.bounded and not on_cpu:
        return Served("torch", "its probabilities may be too small for the kernel's float32")
    if compute_dtype(logits.dtype) != torch.float32 and not (on_cpu and plan.form in WIDE):
        return Served("torch", "this kernel computes in float32")
    if on_cpu:
        return Served("torch", "it has no fused form") if plan.form == "network" else Served("numba")
    most = MOST_SCALED if plan.form == "affine" and plan.tables[0].ndim == 1 else MOST_CLASSES[plan.form]
    if logits.shape[1] > most:
        return Served("torch", f"{logits.shape[1]} classes are more than the {most} of this kernel")
    if plan.form == "network" and sum(table.numel() for table in plan.tables) > MOST_WEIGHTS:
        return Served("torch", f"its network has more than the {MOST_WEIGHTS} weights of this kernel")
    if plan.form == "curves" and len(plan.tables[0]) > MOST_RAMPS:
        return Served("torch", f"{len(plan.tables[0])} ramps are more than the {MOST_RAMPS} of this kernel")
    if logits.ndim > 2 and logits.shape[0] > MOST_IMAGES:
        return Served("torch", f"{logits.shape[0]} images are more than the {MOST_IMAGES} of this kernel")
    return Served("triton") if has_triton() else Served("torch", "there is no triton of 3.4 or newer for CUDA")


def is_followed(logits: Tensor) -> bool:
    """Return whether derivatives are taken forwards, or a transformation such as `vmap` is at work."""
    if torch._C._functorch.is_functorch_wrapped_tensor(logits):
        return True
    return torch.autograd.forward_ad._current_level >= 0 and (
        torch.autograd.forward_ad.unpack_dual(logits).tangent is not None
    )


def writes_into(out: Tensor, logits: Tensor) -> bool:
    """Return whether a kernel may write there: all axes of space in a row, over the logits themselves or apart."""
    same = out.data_ptr() == logits.data_ptr() and out.stride() == logits.stride() and out.dtype == logits.dtype
    apart = out.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr()
    return (same or apart) and as_images(out).data_ptr() == out.data_ptr()


@functools.cache
def has_triton() -> bool:
    """Return whether kernels for CUDA devices can be compiled: older ones know too little of tuples."""
    if importlib.util.find_spec("triton") is None or torch.version.hip is not None:
        return False
    import triton

    return tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2]) >= OLDEST_TRITON


def apply_plan(
    by: str, plan: FusedPlan, logits: Tensor, around: Tensor | None, normalises: bool, out: Tensor | None = None
) -> Tensor:
    """Return log-probabilities, or scores, of logits ``(batch, classes, *space)``, computed in one pass.

    Args:
        by: "numba" or "triton".
        plan: the map.
        logits: of any floating type; refused if any is not finite.
        around: ``(batch, contexts, *space)``, for curves.
        normalises: log-probabilities instead of scores.
        out: where to write them, in the shape of the logits, with axes of space that lie in a row; it may be the logits
            themselves. None for new memory, of the type that is computed in.
    """
    kind = compute_dtype(logits.dtype)
    result = torch.empty(logits.shape, dtype=kind, device=logits.device) if out is None else out
    context = None if around is None else as_images(around)
    if by == "triton":
        from segcal.kernels import launch_triton

        if not launch_triton.apply_plan(plan, as_images(logits.detach()), as_images(result), context, normalises):
            check_finite(logits, "logits")
            raise InputError(
                "logits has values that are NaN, infinite or above 1e10 in size, but all must be finite. The result "
                "was written over them: compute them again."
            )
        return result
    check_finite(logits, "logits")
    from segcal.kernels import apply_numba

    apply_numba.apply_plan(plan, as_images(logits.detach().to(kind)), as_images(result), context, normalises)
    return result


def as_images(values: Tensor) -> Tensor:
    """Return ``(images, classes, n)``, the same memory where possible; voxels without space are one image."""
    return values.T[None] if values.ndim == 2 else values.flatten(2)
