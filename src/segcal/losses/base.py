r"""The contract of every training loss.

A loss is a :class:`torch.nn.Module`: ``loss(logits, labels)`` with logits ``(batch, classes, *space)`` and integer
labels ``(batch, *space)``. A subclass writes :meth:`Loss.compute`; this class checks the input and leaves autocast:
half types are computed in float32.

One mask for all: a voxel whose label is `ignore_index` counts nowhere, and means are over the voxels that count.
A batch in which none counts has loss zero and gradient zero, not NaN, so that one void crop does not end a training.

One rule for class weights: the factor of class c multiplies every :math:`-\log p_c`. A mean is divided by the factors
of the labels, :math:`\sum_i w_{y_i}`, as :class:`torch.nn.CrossEntropyLoss` does it. Penalties have no weights.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from segcal.arguments import fits
from segcal.errors import InputError
from segcal.numerics import compute_dtype
from segcal.types import IGNORED, Labels, Logits

Reduction: TypeAlias = Literal["mean", "sum", "none"]


class Loss(nn.Module, ABC):
    """Compares logits with labels.

    Args:
        class_weights: one factor per class, or None.
        ignore_index: the label of voxels that do not count.
        reduction: "mean", "sum" or "none".
    """

    # The loss of one voxel, as the table of the documentation has it.
    formula: ClassVar[str]
    class_weights: Tensor | None

    def __init__(
        self, class_weights: Tensor | None = None, ignore_index: int = IGNORED, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", None if class_weights is None else _check_class_weights(class_weights))
        whole = isinstance(ignore_index, int) and not isinstance(ignore_index, bool)
        check(whole, "ignore_index", ignore_index, "a whole number is needed. Choose one that is no class, such as 255")
        known = fits(reduction, Reduction)
        check(known, "reduction", reduction, "mean, sum or none is needed. Choose one of these")
        self.ignore_index, self.reduction = ignore_index, reduction

    @abstractmethod
    def compute(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the loss of float32 or float64 logits and of int64 labels with :data:`IGNORED` for void voxels."""

    def extra_repr(self) -> str:
        """Return the options, for printing and for telling two losses apart."""
        shown = {key: value for key, value in vars(self).items() if key[0] != "_" and key != "training"}
        if self.class_weights is not None:
            shown["class_weights"] = self.class_weights.tolist()
        return ", ".join(f"{key}={value!r}" for key, value in shown.items())

    def forward(self, logits: Logits, labels: Labels) -> Tensor:
        """Return the loss of a batch."""
        _check_tensors(logits, labels)
        _check_shapes(logits, labels)
        if self.class_weights is not None and len(self.class_weights) != logits.shape[1]:
            raise InputError(
                f"class_weights has {len(self.class_weights)} entries, but the logits have {logits.shape[1]} classes. "
                "Give one factor a class."
            )
        labels = labels.long()
        if self.ignore_index != IGNORED:
            labels = torch.where(labels == self.ignore_index, IGNORED, labels)
        # Neither a compiler nor the recording of a CUDA graph can look at values.
        recording = logits.is_cuda and torch.cuda.is_current_stream_capturing()
        if not (recording or torch.compiler.is_compiling()):
            _check_values(logits, labels, self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            return self.compute(logits.to(compute_dtype(logits.dtype)), labels)


def _check_tensors(logits: Logits, labels: Labels) -> None:
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise InputError(
                f"{name} is {type(value).__name__}, but a tensor is needed. Convert with torch.as_tensor({name})."
            )
    if not logits.is_floating_point():
        raise InputError(f"logits has dtype {_name(logits)}, but floating-point numbers are needed. Pass raw scores.")
    if logits.device != labels.device:
        raise InputError(
            f"logits is on {logits.device} and labels on {labels.device}, but one device is needed. Move the labels "
            "with labels.to(logits.device)."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels has dtype {_name(labels)}, but whole numbers are needed. Convert with labels.long().")


def _check_shapes(logits: Logits, labels: Labels) -> None:
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
    if not labels.numel():
        raise InputError(f"logits has shape {shape}, but at least one voxel is needed. Leave empty batches out.")


def reduced(terms: Tensor, total: Tensor, reduction: Reduction) -> Tensor:
    """Return the terms, their sum, or their mean: the sum divided by `total`."""
    if reduction == "none":
        return terms
    return terms.sum() if reduction == "sum" else terms.sum() / total


def check(holds: bool, name: str, value: object, needed: str) -> None:
    """Refuse the value of an option for which something does not hold."""
    if not holds:
        raise InputError(f"{name} is {value!r}, but {needed}.")


def check_choice(name: str, value: object, known: tuple[object, ...]) -> None:
    """Refuse a value that is none of the known ones."""
    needed = " or ".join(str(choice) for choice in known)
    fitting = isinstance(value, str | int | None) and value in known
    check(fitting, name, value, f"{needed} is needed. Choose one of these")


def check_positive(value: float, name: str) -> float:
    """Return `value` if it is a number of at least zero."""
    positive = fits(value, float) and not value < 0
    check(positive, name, value, "a number of at least 0 is needed. Choose 0 to switch it off")
    return float(value)


def _check_values(logits: Logits, labels: Labels, ignore_index: int) -> None:
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
    try:
        values = torch.as_tensor(class_weights).detach()
        values = values if values.is_floating_point() else values.float()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"class_weights is {type(class_weights).__name__}, but one factor a class is needed. Pass "
            "torch.tensor([1.0, 2.0, ...])."
        ) from None
    if values.ndim != 1 or not bool((values >= 0).all()) or not bool(values.isfinite().all()):
        found = f"{values.tolist()}" if values.ndim == 1 else f"of shape {tuple(values.shape)}"
        raise InputError(
            f"class_weights is {found}, but one finite factor of at least 0 a class is needed. Pass "
            "torch.tensor([1.0, 2.0, ...])."
        )
    return values


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
