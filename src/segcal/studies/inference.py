"""How a model is run: on crops of different sizes, on several scales of an image, and on the slices of a volume.

A model is any function from an image ``(channels, *space)`` to logits ``(classes, *space)``.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from segcal.studies.repredicted_cases import Model
from segcal.errors import InputError
from segcal.pooling import pool

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
INTERPOLATIONS = {1: "linear", 2: "bilinear", 3: "trilinear"}


def in_crops(model: Model, size: int) -> Model:
    """Return a model that sees crops of `size` voxels along each axis, laid side by side.

    The last crop along an axis ends where the image ends, so that every crop is full; where it overlaps the one
    before, its own prediction counts. Axes shorter than `size` are taken whole.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"size is {size!r}, but a count of voxels of at least 1 is needed. Try 64.")

    def predict(image: Tensor) -> Tensor:
        space = image.shape[1:]
        starts = [_starts(length, size) for length in space]
        whole: Tensor | None = None
        for corner in product(*starts):
            part = (slice(None), *(slice(start, start + size) for start in corner))
            logits = model(image[part])
            whole = logits.new_empty(len(logits), *space) if whole is None else whole
            whole[part] = logits
        assert whole is not None
        return whole

    return predict


def over_scales(model: Model, scales: Sequence[float] = SCALES, pooling: str = "mean_probs") -> Model:
    """Return a model that sees an image at several scales and pools what it predicts.

    Args:
        model: sees each of the resized images.
        scales: factors on the size of the image.
        pooling: a name of :data:`segcal.POOLINGS`, of predictions that have been brought back to the image's size.
    """
    if not scales or not all(scale > 0 for scale in scales):
        raise InputError(f"scales is {tuple(scales)}, but positive factors are needed. Try (0.75, 1.0, 1.25).")

    def predict(image: Tensor) -> Tensor:
        return pool((_at_scale(model, image, scale) for scale in scales), pooling)

    return predict


def slice_by_slice(model: Model) -> Model:
    """Return a model of volumes ``(channels, slices, height, width)`` that sees one slice at a time; pictures pass."""

    def predict(image: Tensor) -> Tensor:
        if image.ndim < 4:
            return model(image)
        return torch.stack([model(image[:, number]) for number in range(image.shape[1])], dim=1)

    return predict


def _at_scale(model: Model, image: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return model(image)
    space = image.shape[1:]
    size = [max(1, round(scale * length)) for length in space]
    how = INTERPOLATIONS[len(space)]
    resized = functional.interpolate(image[None].float(), size=size, mode=how, align_corners=False)[0]
    logits = model(resized)
    back: Tensor = functional.interpolate(logits[None], size=list(space), mode=how, align_corners=False)[0]
    return back


def _starts(length: int, size: int) -> list[int]:
    """Return where crops begin along an axis."""
    if length <= size:
        return [0]
    return [*range(0, length - size, size), length - size]
