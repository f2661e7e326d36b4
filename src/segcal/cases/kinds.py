r"""From what is on disk to the log domain, by the declared kind; never guessed from values.

- ``logits``: finite scores, taken as they are.
- ``probs``: probabilities that sum to 1. Zeros cannot be logged, so :math:`p` is clipped from below, renormalised
  and logged (definitions: 1e-7 for float32 and float16, whose next value below 1 is 1 - 6e-8; 1e-15 for float64).
- ``sigmoid``: one foreground probability a voxel, with or without a channel axis of length one;
  it becomes two classes :math:`(\log(1 - p), \log p)`.

Clipping, dividing by the sum and the logarithm round; the winning class of every voxel stays that of the stored values.
"""

import numpy as np
import torch
from torch import Tensor

from segcal.cases.decision import keep_decision
from segcal.checks import as_tensor, check_case_logits, check_finite, check_floating
from segcal.errors import InputError
from segcal.numerics import compute_dtype
from segcal.types import Kind

KINDS: tuple[Kind, ...] = ("logits", "probs", "sigmoid")

# Stored float16 probabilities of C classes can miss a sum of 1 by about C / 2048; logits miss it by far more.
SUM_TOLERANCE = 0.02
CLIP = {torch.float32: 1e-7, torch.float64: 1e-15}


def check_kind(kind: str) -> Kind:
    """Return `kind` if it names one."""
    for known in KINDS:
        if kind == known:
            return known
    raise InputError(f"no kind is named {kind!r}. Choose one of: {', '.join(KINDS)}.")


def to_log_domain(raw: object, kind: Kind, name: str, num_classes: int | None = None) -> Tensor:
    """Return finite logits ``(classes, *space)`` from one member's raw array.

    Args:
        raw: the array as stored.
        kind: what its numbers are.
        name: how to call it in a message.
        num_classes: the expected number of classes, if known.
    """
    values = as_tensor(raw, name)
    if kind == "sigmoid":
        return _from_sigmoid(values, name)
    check_case_logits(values, name, num_classes)
    if kind == "logits":
        return values
    _check_range(values, name)
    probs = values.to(compute_dtype(values.dtype))
    decision = probs.cpu().numpy().argmax(axis=0)
    total = probs.sum(dim=0)
    worst = float((total - 1).abs().max()) if total.numel() else 0.0
    if worst > SUM_TOLERANCE:
        raise InputError(
            f"{name} has probabilities whose sum over classes is off by up to {worst:.3g}, but they must sum to 1. "
            "Several independent sigmoid outputs are not a distribution; logits are declared with kind='logits'."
        )
    kept = probs.clamp(min=CLIP[probs.dtype])  # the one copy: what was read may be a file
    kept.div_(kept.sum(dim=0, keepdim=True)).log_()
    return _keeping(kept, decision, name)


def like_probabilities(scores: object) -> bool:
    """Whether scores ``(classes, *space)`` all lie in 0 to 1 and sum to 1; logits of a network hardly ever do."""
    values = as_tensor(scores, "scores")
    if not values.is_floating_point() or values.ndim == 0 or len(values) < 2 or values.numel() == 0:
        return False
    lowest, highest = values.aminmax()
    if not (0 <= lowest < highest <= 1 + SUM_TOLERANCE):  # one constant says nothing either way
        return False
    return bool(((values.sum(dim=0, dtype=torch.float64) - 1).abs() <= SUM_TOLERANCE).all())


def _from_sigmoid(values: Tensor, name: str) -> Tensor:
    check_floating(values, name)
    check_finite(values, name)
    _check_range(values, name)
    if values.ndim > 1 and values.shape[0] == 1:
        values = values[0]
    decision = (values > 0.5).cpu().numpy()
    foreground = values.to(compute_dtype(values.dtype))
    clip = CLIP[foreground.dtype]
    foreground = foreground.clamp(clip, 1 - clip)
    return _keeping(torch.stack([torch.log1p(-foreground), foreground.log()]), decision, name)


def _keeping(logits: Tensor, decision: np.ndarray, name: str) -> Tensor:
    return torch.from_numpy(keep_decision(logits.cpu().numpy(), decision, name)).to(logits.device)


def _check_range(values: Tensor, name: str) -> None:
    if values.numel() and (float(values.min()) < 0 or float(values.max()) > 1 + SUM_TOLERANCE):
        raise InputError(
            f"{name} has values from {float(values.min()):.4g} to {float(values.max()):.4g}, but probabilities lie "
            "between 0 and 1. If these are logits, declare kind='logits'."
        )
