r"""The contract of every training loss.

A loss is a :class:`torch.nn.Module`: ``loss(logits, labels)`` with logits ``(batch, classes, *space)`` and integer
labels ``(batch, *space)``. A subclass writes :meth:`Loss.compute`; this class checks the input and leaves autocast:
half types are computed in float32.

One mask for all: a voxel whose label is `ignore_index` counts nowhere, and means are over the voxels that count.
A batch in which none counts has loss zero and gradient zero, not NaN, so that one void crop does not end a training.

One rule for class weights: the factor of class c multiplies every :math:`-\log p_c`, and a mean is divided by the
factors of the labels, :math:`\sum_i w_{y_i}`, as :class:`torch.nn.CrossEntropyLoss` does it. Penalties have no weights.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from segcal.errors import InputError
from segcal.numerics import compute_dtype
from segcal.types import IGNORED, Labels, Logits

Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Loss(nn.Module, ABC):
    """Compares logits with labels.

    Args:
        class_weights: one factor a class, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

    class_weights: Tensor | None

    def __init__(
        self, class_weights: Tensor | None = None, ignore_index: int = IGNORED, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", None if class_weights is None else _check_class_weights(class_weights))
        self.ignore_index = ignore_index
        self.reduction = check_reduction(reduction)

    @abstractmethod
    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the loss of float32 or float64 logits and of int64 labels with :data:`IGNORED` for void voxels."""

    def forward(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the loss of a batch."""
        labels = check_batch(logits, labels, self.class_weights, self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            return self.compute(logits.to(compute_dtype(logits.dtype)), labels)


def check_batch(logits: Logits, labels: Labels, class_weights: Tensor | None, ignore_index: int) -> Labels:
    """Check a batch and return its labels as int64 with :data:`IGNORED` for `ignore_index`."""
    shape = tuple(logits.shape)
    if logits.ndim < 2 or shape[1] < 2:
        raise InputError(
            f"logits has shape {shape}, but (batch, classes, *space) with at least 2 classes is needed. "
            "Turn one sigmoid output z into the two logits (0, z)."
        )
    if tuple(labels.shape) != (shape[0], *shape[2:]):
        raise InputError(
            f"labels has shape {tuple(labels.shape)}, but logits of shape {shape} need {(shape[0], *shape[2:])}. "
            "Labels are class indices without a class axis."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels has dtype {_name(labels)}, but whole numbers are needed. Convert with labels.long().")
    if class_weights is not None and len(class_weights) != shape[1]:
        raise InputError(
            f"class_weights has {len(class_weights)} entries, but the logits have {shape[1]} classes. "
            "Give one factor a class."
        )
    labels = labels.long()
    if ignore_index != IGNORED:
        labels = torch.where(labels == ignore_index, IGNORED, labels)
    # Neither a compiler nor the recording of a CUDA graph can look at values.
    recording = logits.is_cuda and torch.cuda.is_current_stream_capturing()
    if not (recording or torch.compiler.is_compiling()):
        _check_values(logits, labels, ignore_index)
    return labels


def reduce_voxels(terms: Tensor, labels: Labels, reduction: Reduction) -> Tensor:
    """Reduce one term a voxel: ignored voxels are zero, and left out of the mean."""
    valid = labels != IGNORED
    terms = torch.where(valid, terms, 0.0)
    if reduction == "none":
        return terms
    return terms.sum() if reduction == "sum" else terms.sum() / valid.sum().clamp(min=1)


def check_reduction(reduction: str) -> Reduction:
    """Return `reduction` if it is one."""
    for known in REDUCTIONS:
        if reduction == known:
            return known  # type: ignore[return-value]
    raise InputError(f"reduction is {reduction!r}, but mean, sum or none is needed. Choose one of these.")


def check_positive(value: float, name: str) -> float:
    """Return `value` if it is a number of at least zero."""
    if not value >= 0:
        raise InputError(f"{name} is {value!r}, but a number of at least 0 is needed. Choose 0 to switch it off.")
    return float(value)


def _check_values(logits: Logits, labels: Labels, ignore_index: int) -> None:
    if not labels.numel():
        return
    # The extremes answer all questions in one pass, and one transfer brings them: each is a wait for the GPU.
    extremes = [*logits.detach().aminmax(), *labels.aminmax()]
    *bounds, lowest, highest = torch.stack([value.double() for value in extremes]).tolist()
    if not all(map(math.isfinite, bounds)):
        bad_logits = int((~torch.isfinite(logits)).sum())
        raise InputError(
            f"logits has {bad_logits} values that are NaN or infinite, but all must be finite. "
            "The training has diverged: lower the learning rate, or train without amp."
        )
    if lowest < IGNORED or highest >= logits.shape[1]:
        found = labels[(labels < IGNORED) | (labels >= logits.shape[1])].unique()
        raise InputError(
            f"labels contains {int(found[0])}, but the logits have {logits.shape[1]} classes "
            f"(0 to {logits.shape[1] - 1}) and ignore_index = {ignore_index}. "
            f"Map this label, or pass ignore_index={int(found[0])}."
        )


def _check_class_weights(class_weights: Tensor) -> Tensor:
    values = torch.as_tensor(class_weights)
    if values.ndim != 1 or not values.is_floating_point() or not bool((values >= 0).all()):
        raise InputError(
            f"class_weights has shape {tuple(values.shape)} and dtype {_name(values)}, but one non-negative "
            "floating-point factor a class is needed. Pass torch.tensor([1.0, 2.0, ...])."
        )
    return values


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
