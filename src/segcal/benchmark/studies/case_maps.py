"""What a reader wants to see of one case: the input, the truth, the prediction, and confidence before and after.

Maps are small pictures (:mod:`segcal.report.pictures`): of a volume a few slices across its shortest axis,
where there is something to see; of a large image every second or third pixel. Confidence and the probability of
foreground are stored on one scale, 0 to 1, for all cases and stages.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.numerics import canonical_logits, compute_dtype, free_energy, winner
from segcal.report.pictures import encode_indices, encode_jpeg, encode_values
from segcal.types import IGNORED

# Pixels along the longer side that are kept, of a picture and of a slice of a volume.
SIDES = {2: 288, 3: 160}
SLICES = 8
# Temperatures are stored from 0 to this, for all cases alike.
HOTTEST = 5.0
# Of an image that is no picture, so much at either end of its values is cut off.
TAIL = 0.5


@dataclass(frozen=True)
class CaseArrays:
    """Arrays ``(*space)`` of one case.

    Attributes:
        labels: the truth.
        before: the predicted class without a calibrator.
        after: the predicted class with it: the old one where no class is strictly above it.
        confidence_before: the largest probability without a calibrator.
        confidence_after: the probability of the class in `after`.
        foreground_before: one minus the probability of class 0.
        foreground_after: the same after calibration.
        energy: the free energy of the logits.
        temperature: what a calibrator divided the logits by in each voxel, or None.
    """

    labels: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    confidence_before: NDArray[np.floating]
    confidence_after: NDArray[np.floating]
    foreground_before: NDArray[np.floating]
    foreground_after: NDArray[np.floating]
    energy: NDArray[np.floating]
    temperature: NDArray[np.floating] | None = None


@torch.no_grad()
def arrays_of(case: Case, calibrator: Calibrator) -> CaseArrays:
    """Return the arrays of a case with labels."""
    assert case.labels is not None
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    scores = calibrator.scores(logits[None], case.context)[0]
    before = winner(logits, axis=0)
    stays = scores.gather(0, before[None])[0] >= scores.amax(0)
    after = torch.where(stays, before, winner(scores, axis=0))
    probs = [canonical_logits(each, axis=0).exp() for each in (logits, scores)]
    return CaseArrays(
        labels=case.labels.numpy(),
        before=before.numpy(),
        after=after.numpy(),
        confidence_before=probs[0].gather(0, before[None])[0].numpy(),
        confidence_after=probs[1].gather(0, after[None])[0].numpy(),
        foreground_before=(1 - probs[0][0]).numpy(),
        foreground_after=(1 - probs[1][0]).numpy(),
        energy=free_energy(logits, axis=0).numpy(),
    )


@torch.no_grad()
def temperature_of(case: Case, calibrator: Calibrator) -> NDArray[np.floating]:
    """Return what a calibrator divides the lead of the first class over the second by, in each voxel; 1 in a tie.

    For a calibrator that scales all logits of a voxel alike, such as local temperature scaling, it is the temperature.
    """
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    scores = calibrator.scores(logits[None], case.context)[0]
    top = logits.topk(2, dim=0)
    lead = top.values[0] - top.values[1]
    after = (scores.gather(0, top.indices[:1]) - scores.gather(0, top.indices[1:]))[0]
    ratio = lead / after.clamp(min=torch.finfo(after.dtype).tiny)
    return torch.where((lead > 0) & (after > 0), ratio, torch.ones_like(ratio)).numpy()


def maps_of(case: Case, arrays: CaseArrays, background: bool, has_offset: bool) -> dict[str, Any]:
    """Return the slices of a case with their maps, as plain data.

    Args:
        case: the case.
        arrays: made from it by :func:`arrays_of`.
        background: whether class 0 is what is left over, so that "foreground" means something.
        has_offset: whether the free energy means something.
    """
    space = arrays.labels.shape
    axis = int(np.argmin(space)) if len(space) == 3 else None
    interest = (arrays.labels != IGNORED) & ((arrays.before != arrays.labels) | (arrays.labels > 0))
    shown = choose_slices(interest, axis)
    kept = [size for number, size in enumerate(space) if number != axis]
    step = max(1, -(-max(kept) // SIDES[2 if axis is None else 3]))
    levels = _levels(arrays, has_offset)
    return {
        "shape": list(space),
        "axis": axis,
        "step": step,
        "slices": [
            {"index": place, **_slice(case, arrays, _index(axis, place, step), background, levels)} for place in shown
        ],
    }


def choose_slices(interest: NDArray[np.bool_], axis: int | None, most: int = SLICES) -> list[int]:
    """Return which slices are shown: spread over those with something to see, and the one with most of it.

    >>> choose_slices(np.array([[[0, 1, 1, 1, 0]]], bool), 2, most=2)
    [1, 3]
    """
    if axis is None:
        return [0]
    amount = interest.sum(axis=tuple(number for number in range(interest.ndim) if number != axis))
    there = np.flatnonzero(amount)
    if not len(there):
        return [int(len(amount) // 2)]
    if len(there) <= most:
        return [int(place) for place in there]
    spread = there[np.linspace(0, len(there) - 1, most).round().astype(int)]
    fullest = int(amount.argmax())
    if fullest not in spread:  # the nearest of the others makes room for it
        spread[np.abs(spread - fullest).argmin()] = fullest
    return sorted({int(place) for place in spread})


def size_of(maps: dict[str, Any]) -> int:
    """Return how many characters the pictures of a case have."""
    return sum(
        len(value["png"]) if "png" in value else len(value["jpeg"])
        for each in maps["slices"]
        for value in each.values()
        if isinstance(value, dict)
    )


def _index(axis: int | None, place: int, step: int) -> tuple[Any, ...]:
    if axis is None:
        return (slice(None, None, step), slice(None, None, step))
    index: list[Any] = [slice(None, None, step)] * 3
    index[axis] = place
    return tuple(index)


def _levels(arrays: CaseArrays, has_offset: bool) -> tuple[float, float] | None:
    """Return the range of the free energy of a case, where it counts."""
    counts = arrays.labels != IGNORED
    if not has_offset or not counts.any():
        return None
    return float(arrays.energy[counts].min()), float(arrays.energy[counts].max())


def _slice(
    case: Case, arrays: CaseArrays, index: tuple[Any, ...], background: bool, levels: tuple[float, float] | None
) -> dict[str, Any]:
    found = {
        "truth": encode_indices(arrays.labels[index]),
        "prediction": encode_indices(arrays.before[index]),
        "before": encode_values(arrays.confidence_before[index], 0.0, 1.0),
        "after": encode_values(arrays.confidence_after[index], 0.0, 1.0),
    }
    if (arrays.before[index] != arrays.after[index]).any():
        found["prediction_after"] = encode_indices(arrays.after[index])
    if background:
        found["foreground_before"] = encode_values(arrays.foreground_before[index], 0.0, 1.0)
        found["foreground_after"] = encode_values(arrays.foreground_after[index], 0.0, 1.0)
    if levels is not None:
        found["energy"] = encode_values(arrays.energy[index], *levels)
    if arrays.temperature is not None:
        found["temperature"] = encode_values(arrays.temperature[index], 0.0, HOTTEST)
    if case.image is not None:
        found["image"] = encode_picture(case.image.numpy(), index)
    return found


def encode_picture(image: NDArray[np.floating], index: tuple[Any, ...]) -> dict[str, Any]:
    """Return a slice of an image as JPEG, to look at: three channels as colours, of any other number the last.

    Where an index leaves voxels out, the picture shows the mean of each block instead.
    """
    channels = image if len(image) == 3 else image[-1:]
    low, high = _range(channels)
    whole = tuple(slice(None) if isinstance(each, slice) else each for each in index)
    steps = np.clip((channels[(slice(None), *whole)] - low) / max(high - low, 1e-12), 0, 1)
    pixels = np.rint(255 * steps).astype(np.uint8)
    height, width = channels[(slice(None), *index)].shape[1:]
    smaller = [np.asarray(Image.fromarray(each).resize((width, height), Image.Resampling.BOX)) for each in pixels]
    return encode_jpeg(np.stack(smaller))


def _range(channels: NDArray[np.floating]) -> tuple[float, float]:
    """Return which values are black and white: of a picture all there are, of a scan what most voxels have."""
    low, high = float(channels.min()), float(channels.max())
    if len(channels) == 3 and low >= 0 and high <= 255:
        return 0.0, 1.0 if high <= 1 else 255.0
    low, high = np.percentile(channels, [TAIL, 100 - TAIL])
    return float(low), float(high)
