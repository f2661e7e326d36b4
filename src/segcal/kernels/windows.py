"""What conic scaling looks at around a voxel: gaps to the runner-up, and means and shares in windows of a plane.

With d the distance from the winner to the next class, at most a limit: the mean of d in a window, and the share of a
window's voxels that have the voxel's own class; beyond the border there is nothing. Sums are float64 (of a CUDA device
float32 between columns and rows), counts exact. The CPU has compiled loops, a CUDA device kernels of Triton. Nothing of
it has a gradient.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.kernels import windows_numba
from segcal.kernels.apply import MOST_IMAGES, has_triton, is_followed


def serves(logits: Tensor) -> bool:
    """Return whether there are fused passes for these logits."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_followed(logits):
        return False
    if logits.requires_grad and torch.is_grad_enabled():
        return False
    if logits.device.type == "cpu":
        return True
    return logits.is_cuda and logits.dtype == torch.float32 and _fits_kernels(logits.shape) and has_triton()


def _fits_kernels(shape: Sequence[int]) -> bool:
    """Return whether rows and planes of logits of this shape are few enough for a grid, and planes small enough.

    >>> _fits_kernels((2, 19, 1024, 2048)), _fits_kernels((1, 2, 70_000, 5)), _fits_kernels((1, 2, 50_000, 50_000))
    (True, False, False)
    """
    if len(shape) < 4:  # no windows are taken
        return len(shape) == 2 or shape[0] <= MOST_IMAGES
    rows, planes = shape[-2], shape[0] * math.prod(shape[2:-2])
    return max(rows, planes) <= MOST_IMAGES and rows * shape[-1] < 1 << 31  # places in a plane are int32


def gap_and_winner(logits: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Return the gap to the runner-up, at most `most`, and the winner of logits ``(batch, classes, *space)``."""
    batch, _, *space = logits.shape
    flat = logits.T[None] if logits.ndim == 2 else logits.flatten(2)
    gap, winner = _passes(logits).gap_and_winner(flat.detach(), most)
    return gap.reshape(batch, *space), winner.reshape(batch, *space)


def image_mean(values: Tensor) -> Tensor:
    """Return the float64 mean of every image of ``(images, n)``; with gradients where they are wanted."""
    if values.is_cuda and serves(values):
        return _passes(values).image_mean(values)
    return values.mean(1, dtype=torch.float64)


def window_mean(values: Tensor, width: int, out: Tensor) -> None:
    """Set the mean of what is inside a window in the last two axes of ``(batch, *space)``; in `out` space is a row."""
    _passes(values).window_mean(_planes(values), width, _planes(out.detach()))


def window_share(decided: Tensor, classes: int, width: int, out: Tensor) -> None:
    """Set the share of the own class of what is inside a window, as the mean."""
    _passes(decided).window_share(_planes(decided), classes, width, _planes(out.detach()))


def _planes(values: Tensor) -> Tensor:
    """Return ``(batch, planes, rows, columns)``."""
    return values.flatten(1, -3) if values.ndim > 3 else values.unsqueeze(1)


def _passes(values: Tensor):  # type: ignore[no-untyped-def]
    if not values.is_cuda:
        return windows_numba
    from segcal.kernels import windows_triton

    return windows_triton
