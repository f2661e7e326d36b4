"""The only validation of arrays that come from outside, and of the memory that one thing may take.

Every message has the form of :mod:`segcal.errors`. It has the name the user typed, what was found with shapes and
counts, what is needed, and what to do.
"""

import functools
import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.errors import InputError
from segcal.memory import total_memory
from segcal.types import IGNORED

MAX_CLASSES = 1 << 20
# Masked classes often hold -1e9, which can be computed with. Beyond this, squares of scores swamp all else in a fit.
LARGEST_LOGIT = 1e10
# A size above this comes from a wrong header, and is too long to be written out.
_ABSURD = 1 << 62
_CLASSES_LAST = "If classes are the last axis, move them first with numpy.moveaxis(logits, -1, 0)."


def check_num_classes(num_classes: object) -> int:
    """Return `num_classes` if it is a whole number of at least 2."""
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer) or num_classes < 2:
        raise InputError(
            f"num_classes is {num_classes!r}, but a whole number of at least 2 is needed. "
            "A single sigmoid output is two classes: declare kind='sigmoid'."
        )
    if num_classes > MAX_CLASSES:
        raise InputError(f"num_classes is {num_classes}, but at most {MAX_CLASSES} are possible. Check the number.")
    return int(num_classes)


def check_choice(value: object, name: str, choices: Collection[str]) -> None:
    """Refuse a name that is none of `choices`, or no name at all."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"no {name} is named {value!r}. Choose one of: {', '.join(choices)}.")


def check_seed(seed: object) -> int:
    """Return a seed that is a whole number of at least 0."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}, but a whole number of at least 0 is needed. Choose another.")
    return seed


def check_count(value: object, name: str, least: int, repair: str, what: str = "count") -> None:
    """Refuse what is no whole number, or one below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}, but a {what} of at least {least} is needed. {repair}")


def check_spacing(spacing: Sequence[float] | None, axes: int) -> None:
    """Refuse voxel sizes that are not one positive number per axis of space."""
    if spacing is None:
        return
    sizes = list(spacing) if isinstance(spacing, Sequence) else [spacing]
    if len(sizes) != axes or not all(isinstance(size, int | float) and 0 < size < math.inf for size in sizes):
        raise InputError(
            f"spacing is {spacing!r}, but one positive voxel size per axis of space is needed, {axes} in all. "
            "Correct it, or leave it out."
        )


def as_tensor(array: object, name: str) -> Tensor:
    """Return a tensor that shares memory with a numpy array or tensor."""
    if isinstance(array, Tensor):
        check_dense(array, name)
        return array
    try:
        values = np.asarray(array)
        if not values.dtype.isnative:  # such as the big-endian arrays of some NIfTI files
            values = values.astype(values.dtype.newbyteorder("="))
        if not values.flags.writeable or any(stride < 0 for stride in values.strides):
            values = values.copy()
        return torch.from_numpy(values)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} is {'None' if array is None else type(array).__name__}, but a numeric array is needed. "
            "Pass a numpy array or a torch tensor."
        ) from None


def check_dense(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that has not one value in memory for every voxel."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        raise InputError(
            f"{name} is a sparse, nested, quantised or meta tensor, but a plain one is needed. Convert it."
        )


def check_floating(logits: Tensor, name: str) -> None:
    """Refuse integer, boolean and complex scores."""
    if not logits.is_floating_point():
        raise InputError(
            f"{name} has dtype {_dtype(logits)}, but floating-point values are needed. "
            f"Convert with {_argument(name)}.float() if these really are scores and not labels."
        )


def check_finite(logits: Tensor, name: str) -> None:
    """Refuse NaN, infinite and absurdly large values, and say how many there are."""
    if logits.numel() == 0:
        return
    # NaN spreads into both; several times faster than looking at every value.
    lowest, highest = logits.detach().aminmax()
    if not bool(torch.isfinite(lowest) & torch.isfinite(highest)):
        bad = int(logits.numel() - torch.isfinite(logits).sum())
        raise InputError(
            f"{name} has {bad} values that are NaN or infinite, but all must be finite. "
            "Zero probabilities give -inf: declare kind='probs' instead of taking the log yourself."
        )
    largest = max(-float(lowest), float(highest))
    if largest > LARGEST_LOGIT:
        raise InputError(
            f"{name} has values up to {largest:.2g} in size, but at most {LARGEST_LOGIT:g} can be computed with. "
            "Classes that are masked out need no more than -1e4: clamp the scores."
        )


def check_planes(logits: Tensor, calibrator: str) -> None:
    """Require two or three axes of space, for a calibrator that sees neighbours."""
    axes = logits.ndim - 2
    if axes not in (2, 3):
        raise InputError(
            f"logits has {axes} axes of space, but {calibrator} sees neighbours and needs 2 (image) or 3 (volume). "
            "Pass whole images, or use a calibrator that works voxel by voxel."
        )
    if 0 in logits.shape[2:]:
        raise InputError(
            f"logits has shape {tuple(logits.shape)}, but {calibrator} sees neighbours and needs at least one voxel "
            "along every axis of space. Leave empty images out."
        )


def check_volume(axes: int, needed: int) -> None:
    """Require three axes of space, for a calibrator that sees neighbours in all three."""
    if axes < needed:
        raise InputError(
            f"logits has {axes} axes of space, but with full_3d the calibrator needs {needed}. "
            "Leave full_3d out for images."
        )


def check_forward(logits: Tensor, num_classes: int, finite: bool = True) -> None:
    """Check what a calibrator is called with; of values only if they must be `finite`, and not while exporting."""
    if not isinstance(logits, Tensor):
        raise InputError(
            f"logits is {type(logits).__name__}, but a tensor is needed. Convert with torch.as_tensor(logits)."
        )
    shape = tuple(logits.shape)
    if len(shape) < 2 or shape[1] != num_classes:
        repair = "Add the batch axis with logits[None]."
        if not shape or shape[0] != num_classes:
            repair = "Use the calibrator that was fitted for this number of classes."
        if len(shape) >= 2 and shape[-1] == num_classes:
            repair = "If classes are the last axis, call logits.movedim(-1, 1) first."
        raise InputError(
            f"logits has shape {shape}, but this calibrator has {num_classes} classes and needs "
            f"(batch, {num_classes}, *space). {repair}"
        )
    check_floating(logits, "logits")
    if finite and not torch.compiler.is_compiling():
        check_dense(logits, "logits")
        check_finite(logits, "logits")


def check_case_logits(logits: Tensor, name: str, num_classes: int | None, least: int = 2) -> None:
    """Check the scores ``(classes, *space)`` of one case, of at least so many classes, or regions."""
    shape = tuple(logits.shape)
    if logits.ndim < 1 or shape[0] < least or (num_classes is not None and shape[0] != num_classes):
        needed = "(classes, *space) with at least 2 classes"
        if num_classes is not None:
            needed = f"({num_classes}, *space) like the cases before it"
        repair = "Classes are the first axis of a case; a single sigmoid output is declared with kind='sigmoid'."
        if num_classes is not None and len(shape) > 1 and shape[-1] == num_classes:
            repair = _CLASSES_LAST
        raise InputError(f"{name} has shape {shape}, but {needed} is needed. {repair}")
    if logits.numel() == 0:
        raise InputError(f"{name} has shape {shape}, but at least one voxel is needed. Leave empty images out.")
    check_floating(logits, name)
    check_finite(logits, name)


def check_labels(labels: Tensor, name: str, space: Sequence[int], num_classes: int, ignore: int | None) -> Tensor:
    """Check a label map against its logits and return it as int64 with :data:`IGNORED` for the ignore label."""
    if tuple(labels.shape) != tuple(space):
        raise InputError(
            f"{name} has space {tuple(labels.shape)}, but its logits have {tuple(space)}. "
            f"{_space_repair(tuple(labels.shape), tuple(space), num_classes)}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"{name} has dtype {_dtype(labels)}, but whole numbers are needed. "
            f"Convert with {_argument(name)}.astype('int64') after checking that they are class indices."
        )
    small, labels = labels if labels.dtype == torch.uint8 else None, labels.to(torch.int64)
    if labels.numel():
        lowest, highest = (int(value) for value in (labels if small is None else small).aminmax())
        lowest_kept = IGNORED if ignore == IGNORED else 0
        others = ignore is not None and ignore != IGNORED and lowest <= ignore <= highest
        if lowest >= lowest_kept and highest < num_classes and not others:
            return labels  # the common case, in one pass
    ignored = torch.zeros_like(labels, dtype=torch.bool) if ignore is None else labels == ignore
    outside = ((labels < 0) | (labels >= num_classes)) & ~ignored
    if bool(outside.any()):
        found = labels[outside].unique()
        listed = ", ".join(str(int(value)) for value in found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(
            f"{name} contains {listed}, but there are {num_classes} classes (0 to {num_classes - 1}) and "
            f"ignore = {ignore}. Map these labels, or pass ignore={int(found[-1])}."
        )
    return labels.where(~ignored, IGNORED)


def check_image(image: Tensor, name: str, space: Sequence[int]) -> None:
    """Require ``(channels, *space)``."""
    if tuple(image.shape[1:]) != tuple(space) or image.ndim == 0:
        raise InputError(
            f"{name} has shape {tuple(image.shape)}, but (channels, {', '.join(map(str, space))}) is needed, like its "
            "logits. Give an image of the same size, channels first."
        )


def check_mask(mask: Tensor, name: str, space: Sequence[int]) -> Tensor:
    """Check a valid mask and return it as bool."""
    if tuple(mask.shape) != tuple(space):
        raise InputError(
            f"{name} has space {tuple(mask.shape)}, but its logits have {tuple(space)}. Give one mask value per voxel."
        )
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(f"{name} has values other than 0 and 1, but a mask is needed. Threshold it first.")
    return mask.to(torch.bool)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _argument(name: str) -> str:
    return name.split(" ", 1)[0]


def _space_repair(labels: tuple[int, ...], space: tuple[int, ...], num_classes: int) -> str:
    if len(labels) == len(space) and sorted(labels) == sorted(space):
        return "The axes are in another order: transpose one of them."
    if labels and labels[0] == num_classes and labels[1:] == space:
        return "One-hot labels are not label maps: take argmax over the first axis."
    if space and labels == (num_classes, *space[:-1]):  # (*space, classes) was read as (classes, *space)
        return _CLASSES_LAST
    return "Save logits at label resolution."


@functools.cache  # it is asked for every file, and what a process can have does not change
def memory_limit() -> int:
    """Return the most bytes that one array, or the parameters of one calibrator, may need."""
    return total_memory() // 2


def check_memory(name: object, needed: int, limit: int, repair: str) -> None:
    """Refuse what needs more bytes than the limit when it is used; `repair` says what to do."""
    if needed > limit:
        size = f"{needed / 2**30:.1f} GiB" if needed < _ABSURD else "more memory than any machine has"
        raise InputError(
            f"{name} needs {size}, but at most {limit / 2**30:.1f} GiB (half of this machine's memory) can be used. "
            f"{repair}"
        )
