r"""Contexts of a voxel: a few numbers from its neighbourhood, none of which depends on the offset of the logits.

With the gap to the runner-up, :math:`d = \min(z_{(1)} - z_{(2)}, 8)`, and windows centred at the voxel:

- ``disagreement``: :math:`\log \max(I, 10^{-6})` of the members' mutual information I (:mod:`segcal.pooling`);
- ``gap_near``, ``gap_far``: the mean of d in a window of 9 and of 41;
- ``share_near``, ``share_far``: the share of voxels in a window of 5 and of 25 that have the voxel's own class;
- ``gap_image``: the mean of d in the whole image.

Windows lie in the last two axes, the plane in which volumes are finely resolved. They are measured in voxels: a
calibrator is applied at the resolution at which it was fitted. Beyond the border, and where nothing was predicted
(`Context.valid`), there is nothing: a mean is over what is there. All voxels of a prediction count, also those whose
label is ignored, since nobody knows these later.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from segcal.checks import check_planes
from segcal.errors import InputError
from segcal.kernels import windows
from segcal.numerics import winner
from segcal.types import Context, Logits

LARGEST_GAP = 8.0
SMALLEST_INFORMATION = 1e-6
GAP_WINDOWS = {"gap_near": 9, "gap_far": 41}
SHARE_WINDOWS = {"share_near": 5, "share_far": 25}
WINDOWS = GAP_WINDOWS | SHARE_WINDOWS
CONTEXTS = ("disagreement", *WINDOWS, "gap_image")
WORDS = {
    "disagreement": "disagreement of the members",
    "gap_near": "confidence around, 9 x 9",
    "gap_far": "confidence around, 41 x 41",
    "share_near": "share of its class around, 5 x 5",
    "share_far": "share of its class around, 25 x 25",
    "gap_image": "confidence in the image",
}


def neighbourhood(logits: Logits, context: Context | None, names: Sequence[str], calibrator: str) -> Tensor:
    """Return ``(batch, contexts, *space)`` for logits ``(batch, classes, *space)``; the calibrator is for messages.

    >>> around = neighbourhood(torch.tensor([[[[3.0, 0.0]], [[0.0, 1.0]]]]), None, ["gap_near", "share_near"], "conic")
    >>> around.flatten().tolist()
    [2.0, 2.0, 0.5, 0.5]
    """
    if not names:
        return logits.new_zeros(logits.shape[0], 0, *logits.shape[2:])
    if not WINDOWS.keys().isdisjoint(names):
        check_planes(logits, calibrator)
    context = Context() if context is None else context
    if not windows.serves(logits):
        seen = _seen(logits, runner_up_gap(logits), winner(logits), context)
        return torch.stack([_one(name, logits, *seen, context, calibrator) for name in names], dim=1)
    around = logits.new_empty(len(logits), len(names), *logits.shape[2:])
    _fill(dict(zip(names, around.unbind(1), strict=True)), logits, context, calibrator)
    return around


def _fill(rows: Mapping[str, Tensor], logits: Logits, context: Context, calibrator: str) -> None:
    """Fill rows ``(batch, *space)`` with contexts by fused passes."""
    seen = _seen(logits, *windows.gap_and_winner(logits, LARGEST_GAP), context)
    for name, row in rows.items():
        found = _one(name, logits, *seen, context, calibrator, row)
        if found is not row:
            row.copy_(found)


def _seen(logits: Logits, gap: Tensor, decided: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """Return gaps and classes, 0 and none of the classes where nothing was predicted."""
    valid = context.valid
    return (gap, decided) if valid is None else (gap * valid, decided.where(valid, logits.shape[1]))


def _one(
    name: str,
    logits: Logits,
    gap: Tensor,
    decided: Tensor,
    context: Context,
    calibrator: str,
    out: Tensor | None = None,
) -> Tensor:
    """Return one context by tensor operations; those of windows by compiled loops, if there is an `out` for them."""
    if name == "disagreement":
        return _log_information(logits, context, calibrator)
    if name == "gap_image":
        return _of_image(gap, context)
    width, valid = WINDOWS[name], context.valid
    if name in GAP_WINDOWS:
        found = _window_mean(gap, width, out)
    else:
        found = _share(decided, logits.shape[1] + (valid is not None), width, logits.dtype, out)
    if valid is None:
        return found
    there = _window_mean(valid.to(gap), width, None if out is None else torch.empty_like(out))
    return torch.where(valid, found / there, 0)


def check_contexts(contexts: Sequence[str]) -> tuple[str, ...]:
    """Return names of contexts, once each, in their usual order."""
    for name in contexts:
        if name not in CONTEXTS:
            raise InputError(
                f"contexts has {name!r}, but there is no such context. Choose from: {', '.join(CONTEXTS)}."
            )
    return tuple(name for name in CONTEXTS if name in contexts)


def each_context(logits: Logits, context: Context, wanted: Collection[str]) -> Tensor:
    """Return float32 ``(all contexts, n)`` of the voxels of one image; NaN for what is not wanted, or not known."""
    known = {"gap_image", *(WINDOWS if logits.ndim - 2 in (2, 3) else ())}
    known |= set() if context.disagreement is None else {"disagreement"}
    found = torch.full((len(CONTEXTS), 1, *logits.shape[2:]), torch.nan, dtype=logits.dtype)
    rows = {name: row for name, row in zip(CONTEXTS, found, strict=True) if name in wanted and name in known}
    _fill(rows, logits, context, "fit")
    return found.reshape(len(CONTEXTS), -1).float()


def half_window(names: Sequence[str]) -> int:
    """Return how far a voxel sees in its plane."""
    return max((WINDOWS.get(name, 1) // 2 for name in names), default=0)


def runner_up_gap(logits: Logits) -> Tensor:
    """Return how far the winner is above the next class, at most 8, ``(batch, *space)``."""
    index = winner(logits).unsqueeze(1)
    others = logits.scatter(1, index, -torch.inf)  # faster than sorting
    return (logits.gather(1, index)[:, 0] - others.amax(1)).clamp(max=LARGEST_GAP)


def _log_information(logits: Logits, context: Context, calibrator: str) -> Tensor:
    if context.disagreement is None:
        raise InputError(
            f"context has no disagreement, but this {calibrator} was fitted to see how much the members disagree. "
            "Open the predictions of all members, or fit it again to pooled predictions."
        )
    return context.disagreement.to(logits).clamp(min=SMALLEST_INFORMATION).log()


def _of_image(gap: Tensor, context: Context) -> Tensor:
    whole = context.mean_gap
    if whole is None:  # voxels without space are one case together
        images = gap.shape[0] if gap.ndim > 1 else 1
        whole = windows.image_mean(gap.reshape(images, -1))
        if context.valid is not None:
            whole = whole / context.valid.reshape(images, -1).double().mean(1).clamp(min=1e-12)
    return whole.to(gap).reshape(-1, *[1] * (gap.ndim - 1)).expand_as(gap)


def _window_mean(values: Tensor, width: int, out: Tensor | None = None) -> Tensor:
    """Return the mean of what is inside a window in the last two axes; in `out`, or by differences of running sums."""
    if out is not None:
        windows.window_mean(values, width, out)
        return out
    half, sums = width // 2, values.double()
    inside = torch.ones((), dtype=torch.float64, device=values.device)
    for axis in (-1, -2):
        size = values.shape[axis]
        running = pad(sums, [0, 0] * (-axis - 1) + [half + 1, half]).cumsum(axis)
        sums = running.narrow(axis, width, size) - running.narrow(axis, 0, size)
        place = torch.arange(size, dtype=torch.float64, device=values.device)
        count = (place + half).clamp(max=size - 1) - (place - half).clamp(min=0) + 1
        inside = inside * (count if axis == -1 else count[:, None])
    return (sums / inside).to(values.dtype)


def _share(decided: Tensor, classes: int, width: int, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """Return the share of the voxel's own class; one class at a time, so that memory does not grow with them."""
    if out is not None:
        windows.window_share(decided, classes, width, out)
        return out
    share = torch.zeros_like(decided, dtype=dtype)
    for number in range(classes):
        own = (decided == number).to(dtype)
        share = share + own * _window_mean(own, width)
    return share
