r"""From what is on disk to the log domain, by the declared kind; never guessed from values.

- ``logits``: finite scores, taken as they are.
- ``probs``: probabilities that sum to 1. Zeros cannot be logged, so :math:`p` is clipped from below, renormalised and
  logged. The limit is 1e-7 for float32 and float16, whose next value below 1 is 1 - 6e-8, and 1e-15 for float64
  (definitions).
- ``sigmoid``: one foreground probability a voxel, with or without a channel axis of length one;
  it becomes two classes :math:`(\log(1 - p), \log p)`. Of declared regions, one probability each
  (:func:`region_logits`).

Clipping, dividing by the sum and the logarithm round; the winning class of every voxel stays that of the stored values.

Values are checked for two warnings, which never decide anything. Scores may look like those of another kind
(:func:`kind_warning_of`), and one constant vector may fill the image. nnU-Net fills the outside of its cropping box
with (1, 0, ..., 0). Exported as logits, that vector has a softmax of e / (e + C - 1), a confidence that no network
gave. It rules every fit and every metric (definitions 13.1). It is looked for by its exact value: among real logits of
a network, hardly two voxels are equal.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.cases.keep_argmax import keep_decision
from segcal.checks import as_tensor, check_case_logits, check_finite, check_floating
from segcal.errors import InputError
from segcal.numerics import compute_dtype
from segcal.types import Kind

KINDS: tuple[Kind, ...] = ("logits", "probs", "sigmoid")

# Stored float16 probabilities of C classes can miss a sum of 1 by about C / 2048; logits miss it by far more.
SUM_TOLERANCE = 0.02
CLIP = {torch.float32: 1e-7, torch.float64: 1e-15}
# A share of the voxels that is worth a word, and how many voxels are looked at to find the candidate.
LARGE_SHARE = 0.1
SAMPLE = 4096
# Of fewer voxels, values may look like anything; and the largest log odds that looks like a probability of 1.
FEWEST = 256
NEARLY_ONE = 0.9

LIKE_PROBS = "scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
LIKE_PARTS = (
    "scores are declared as logits, but none is negative and those of each voxel sum to {:.3g}, as multiples of "
    "probabilities do. Divide by that and declare kind='probs' if so."
)
LIKE_MASKS = "scores have two values in all, as hard masks do, which have no confidence. Export what the network gave."
LIKE_BYTES = (
    "scores are declared as logits, but all are whole numbers, as of 8-bit images. Export what the network gave."
)
LIKE_SQUASHED = (
    "no two classes of a voxel are further apart than 1 in log odds, as where probabilities are taken for logits or "
    "put through a softmax again. Declare kind='probs' or kind='sigmoid' if so, or export what the network gave."
)


def check_kind(kind: str) -> Kind:
    """Return `kind` if it names one."""
    for known in KINDS:
        if kind == known:
            return known
    raise InputError(f"no kind is named {kind!r}. Choose one of: {', '.join(KINDS)}.")


def to_log_domain(raw: object, kind: Kind, name: str, num_classes: int | None = None) -> Tensor:
    """Return finite logits ``(classes, *space)`` from one member's raw array; `name` is for messages."""
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


def filled(values: np.ndarray, valid: np.ndarray | None, kind: Kind) -> np.ndarray:
    """Return scores with those of the least confidence where there are no data.

    >>> filled(np.array([[-9999.0, 3], [-9999, 1]]), np.array([False, True]), "logits").tolist()
    [[0.0, 3.0], [0.0, 1.0]]
    """
    least = {"logits": 0.0, "probs": 1 / len(values), "sigmoid": 0.5}[kind]
    return values if valid is None else np.where(valid, values, np.asarray(least, values.dtype))


def region_logits(raw: object, kind: Kind, name: str, regions: int) -> Tensor:
    """Return finite logits ``(regions, *space)`` of sigmoids from one member's raw array, logits or probabilities.

    Probabilities are clipped as above. They are on the side of 0.5 on which their logit is of 0, and 0.5 becomes 0.
    """
    values = as_tensor(raw, name)
    check_floating(values, name)
    if values.ndim < 1 or values.shape[0] != regions:
        raise InputError(
            f"{name} has shape {tuple(values.shape)}, but ({regions}, *space) is needed, one output per region. "
            "Declare the regions of the model, in the order of its outputs."
        )
    check_finite(values, name)
    if kind == "logits":
        return values
    _check_range(values, name)
    dtype = compute_dtype(values.dtype)
    return torch.special.logit(values.double().clamp(CLIP[dtype], 1 - CLIP[dtype])).to(dtype)


def share_of_ones(logits: Tensor) -> float:
    """Return the share of the voxels of ``(regions, *space)`` at which the probabilities of all regions sum to 1."""
    if len(logits) < 2 or logits.numel() == 0:
        return 0.0
    total = logits.to(compute_dtype(logits.dtype)).sigmoid().sum(0)
    return float(((total - 1).abs() <= SUM_TOLERANCE / 10).float().mean())


def like_probabilities(scores: object) -> bool:
    """Whether scores ``(classes, *space)`` all lie in 0 to 1 and sum to 1; logits of a network hardly ever do."""
    values = as_tensor(scores, "scores")
    if not values.is_floating_point() or values.ndim == 0 or len(values) < 2 or values.numel() == 0:
        return False
    lowest, highest = values.aminmax()
    if not (0 <= lowest < highest <= 1 + SUM_TOLERANCE):  # one constant says nothing either way
        return False
    return bool(((values.sum(dim=0, dtype=torch.float64) - 1).abs() <= SUM_TOLERANCE).all())


def kind_warning_of(logits: Tensor, kind: Kind) -> str:
    r"""Return in a sentence why scores ``(classes, *space)``, in the log domain, hardly are what they were declared as.

    Of logits: probabilities, or multiples of them (percent, 0 to 255); whole numbers. Of all kinds: two values alone;
    and log odds of at most 1, which :math:`\log(e^{p_a} / e^{p_b}) = p_a - p_b` gives where probabilities go through a
    softmax again. Empty where nothing speaks against the kind; some voxels are looked at first, and all of them only
    where those are suspicious.
    """
    flat = logits.detach().cpu().numpy().reshape(len(logits), -1)
    chosen = np.unique(np.linspace(0, max(flat.shape[1] - 1, 0), SAMPLE).astype(np.int64))
    some = flat[:, chosen] if flat.size else flat
    some = some.astype(np.result_type(some, np.float32), copy=False)  # numpy is slow at half types
    looks = list(_LOOKS) if kind == "logits" else [_two_values, _squashed]
    if flat.shape[1] < FEWEST or len(flat) < 2:
        looks = [_probs] if kind == "logits" else []
    return next((kind_warning for look in looks if look(some) and (kind_warning := look(flat))), "")


def _probs(flat: np.ndarray) -> str:
    return LIKE_PROBS if like_probabilities(flat) else ""


def _scaled(flat: np.ndarray) -> str:
    total = flat.sum(axis=0, dtype=np.float64)
    middle = float(np.median(total))
    apart = float(np.max(flat) - np.min(flat))  # of an offset that all logits have, the sum says nothing
    alike = middle > 0 and float(np.abs(total - middle).max()) <= SUM_TOLERANCE * min(middle, apart)
    return LIKE_PARTS.format(middle) if alike and 0 <= flat.min() < flat.max() else ""


def _whole(flat: np.ndarray) -> str:
    return LIKE_BYTES if (flat == np.round(flat)).all() and len(np.unique(flat)) > 2 else ""


def _two_values(flat: np.ndarray) -> str:
    low, high = flat.min(), flat.max()
    return LIKE_MASKS if low < high and ((flat == low) | (flat == high)).all() else ""


def _squashed(flat: np.ndarray) -> str:
    apart = float((flat.max(0) - flat.min(0)).max())
    return LIKE_SQUASHED if NEARLY_ONE <= apart <= 1 + SUM_TOLERANCE else ""


_LOOKS = (_two_values, _probs, _scaled, _whole, _squashed)


class Padding(NamedTuple):
    """One vector, and the share of the voxels that hold exactly it."""

    share: float
    vector: tuple[float, ...]

    @property
    def one_hot(self) -> bool:
        """Whether it is (1, 0, ..., 0) or another unit vector."""
        return sorted(self.vector) == [0.0] * (len(self.vector) - 1) + [1.0]


def find_padding(scores: np.ndarray, mask: np.ndarray | None = None) -> Padding | None:
    """Return the vector that fills a large share of the voxels of scores ``(classes, *space)``, or None.

    Voxels outside `mask` are not looked at.

    >>> find_padding(np.concatenate([np.eye(2)[:, [0] * 9], np.arange(8.0).reshape(2, 4)], axis=1))
    Padding(share=0.6923076923076923, vector=(1.0, 0.0))
    """
    flat = scores.reshape(len(scores), -1)
    if mask is not None:
        flat = flat[:, mask.reshape(-1)]
    voxels = flat.shape[1]
    if voxels == 0:
        return None
    chosen = np.unique(np.linspace(0, voxels - 1, min(SAMPLE, voxels)).astype(np.int64))
    vectors, counts = np.unique(flat[:, chosen].T, axis=0, return_counts=True)
    candidate = vectors[counts.argmax()]
    if counts.max() < LARGE_SHARE / 2 * len(chosen):
        return None
    same = np.ones(voxels, bool)
    for plane, value in zip(flat, candidate, strict=True):
        same &= plane == value
    share = float(same.mean())
    return Padding(share, tuple(float(value) for value in candidate)) if share >= LARGE_SHARE else None


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
