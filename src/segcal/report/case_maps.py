"""One case to look at: the input, the truth, the prediction, and confidence before and after, as small pictures.

Of a volume a few slices across its shortest axis are kept, where there is something to see; of a large image every
second or third pixel. Confidence and the probability of foreground are stored on one scale, 0 to 1, for all cases and
stages. Of many cases those are kept that a critical reader would ask for, worst first, within a budget.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import Struct, structs
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case, Cases
from segcal.evaluation.slabs import as_seen, calibrated_scores
from segcal.numerics import canonical_logits, decided, free_energy, winner
from segcal.report.pictures import Encoded, encode_indices, encode_jpeg, encode_values
from segcal.types import IGNORED

# Pixels along the longer side that are kept, of a picture and of a slice of a volume.
SIDES = {2: 288, 3: 160}
SLICES = 8
# Temperatures are stored from 0 to this, for all cases alike.
HOTTEST = 5.0
# Of an image that is no picture, so much at either end of its values is cut off.
TAIL = 0.5
# By reason, how many cases are kept for it; a case may have several.
REASONS = {"worst": 3, "least gain": 2, "most gain": 1}
# Characters of pictures in all, about; the first case is kept whatever its size.
BUDGET = 1_000_000
Index: TypeAlias = tuple[slice | int, ...]
# A map of whole numbers (None), or of values with what the first and the last of 256 steps mean.
Layer: TypeAlias = tuple[NDArray[Any], tuple[float, float] | None]


class SliceMaps(Struct, omit_defaults=True):
    """The maps of one slice; those that mean nothing for a case are not there."""

    index: int
    truth: Encoded
    prediction: Encoded
    before: Encoded
    after: Encoded
    prediction_after: Encoded | None = None
    foreground_before: Encoded | None = None
    foreground_after: Encoded | None = None
    energy: Encoded | None = None
    temperature: Encoded | None = None
    image: Encoded | None = None


class CaseMaps(Struct):
    """The slices of a case, every `step`-th pixel of them; `axis` is None for a picture."""

    shape: list[int]
    axis: int | None
    step: int
    slices: list[SliceMaps]


class CaseNumbers(Struct):
    """NLL, ECE and Dice of a case before and after calibration, and what flipped."""

    nll: list[float | None]
    ece: list[float | None]
    dice: list[float | None]
    voxels: int
    flip_rate: float | None


class SeenCase(Struct):
    """A case that is shown: why, its numbers, and its maps."""

    case: str
    why: list[str]
    nll: list[float | None]
    ece: list[float | None]
    dice: list[float | None]
    voxels: int
    flip_rate: float | None
    shape: list[int]
    axis: int | None
    step: int
    slices: list[SliceMaps]


def layers_of(case: Case, calibrator: Calibrator, local: Calibrator | None = None) -> dict[str, Layer]:
    """Return the maps ``(*space)`` of a case with labels, as :class:`SliceMaps` names them.

    Confidence is that of the predicted class, foreground one minus the probability of class 0. The levels of the free
    energy are those of the voxels that count. `local` is the calibrator whose temperature is shown.
    """
    assert case.labels is not None
    if isinstance(calibrator, PerRegion):
        return _region_layers(case, calibrator, case.labels)
    labels = case.labels.numpy()
    scores = calibrated_scores(calibrator, case, "cpu")
    logits = case.logits.to(scores.dtype)
    before = winner(logits, axis=0)
    after = decided(before, scores)
    probs = [canonical_logits(each, axis=0).exp() for each in (logits, scores)]
    energy = free_energy(logits, axis=0).numpy()
    counted = energy[labels != IGNORED]
    found: dict[str, Layer] = {
        "truth": (labels, None),
        "prediction": (before.numpy(), None),
        "before": (probs[0].gather(0, before[None])[0].numpy(), (0.0, 1.0)),
        "after": (probs[1].gather(0, after[None])[0].numpy(), (0.0, 1.0)),
        "prediction_after": (after.numpy(), None),
        "foreground_before": ((1 - probs[0][0]).numpy(), (0.0, 1.0)),
        "foreground_after": ((1 - probs[1][0]).numpy(), (0.0, 1.0)),
    }
    if counted.size:
        found["energy"] = (energy, (float(counted.min()), float(counted.max())))
    if local is not None:
        found["temperature"] = (temperature_of(case, local), (0.0, HOTTEST))
    return found


def _region_layers(case: Case, calibrator: PerRegion, labels: Tensor) -> dict[str, Layer]:
    """Return the same of regions: the last one that is on, and how sure the least sure one is."""
    regions, odds = calibrator.regions, calibrated_scores(calibrator, case, "cpu")
    logits, truth = case.logits.to(odds.dtype), regions.last_true(labels)
    assert truth is not None
    whole = (0.0, 1.0)
    return {
        "truth": (truth.numpy(), None),
        "prediction": (regions.last_on(logits > 0).numpy(), None),
        "before": (logits.abs().amin(0).sigmoid().numpy(), whole),
        "after": (odds.abs().amin(0).sigmoid().numpy(), whole),
        "prediction_after": (regions.last_on(odds > 0).numpy(), None),
        "foreground_before": (logits.amax(0).sigmoid().numpy(), whole),
        "foreground_after": (odds.amax(0).sigmoid().numpy(), whole),
    }


def temperature_of(case: Case, calibrator: Calibrator) -> NDArray[np.floating]:
    """Return what a calibrator divides the lead of the first class over the second by, in each voxel; 1 in a tie.

    For a calibrator that scales all logits of a voxel alike, such as local temperature scaling, it is the temperature.
    """
    scores = calibrated_scores(calibrator, case, "cpu")
    top = case.logits.to(scores.dtype).topk(2, dim=0)
    lead = top.values[0] - top.values[1]
    after = (scores.gather(0, top.indices[:1]) - scores.gather(0, top.indices[1:]))[0]
    ratio = lead / after.clamp(min=torch.finfo(after.dtype).tiny)
    return torch.where((lead > 0) & (after > 0), ratio, torch.ones_like(ratio)).numpy()


def maps_of(case: Case, layers: Mapping[str, Layer], background: bool, has_offset: bool) -> CaseMaps:
    """Return the maps of a case; `background`: foreground means something, `has_offset`: free energy does."""
    labels, before, after = (layers[name][0] for name in ("truth", "prediction", "prediction_after"))
    space = labels.shape
    axis = int(np.argmin(space)) if len(space) == 3 else None
    kept = [size for number, size in enumerate(space) if number != axis]
    step = max(1, -(-max(kept) // SIDES[2 if axis is None else 3]))
    hidden = {"energy"} if not has_offset else set()
    hidden |= set() if background else {"foreground_before", "foreground_after"}
    slices = []
    for place in choose_slices((labels != IGNORED) & ((before != labels) | (labels > 0)), axis):
        index = tuple(place if number == axis else slice(None, None, step) for number in range(len(space)))
        same = {"prediction_after"} if (before[index] == after[index]).all() else set()
        found = {
            name: encode_indices(values[index]) if levels is None else encode_values(values[index], *levels)
            for name, (values, levels) in layers.items()
            if name not in hidden | same
        }
        image = None if case.image is None else encode_picture(case.image.numpy(), index)
        slices.append(SliceMaps(place, image=image, **found))
    return CaseMaps(list(space), axis, step, slices)


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


def choose_cases(losses: Mapping[str, Sequence[float | None]]) -> dict[str, list[str]]:
    """Return the cases to keep with the reasons why, the worst first, from their NLL before and after.

    >>> choose_cases({"a": [1.0, 0.9], "b": [0.5, 0.6], "c": [None, None]})
    {'a': ['worst', 'least gain', 'most gain'], 'b': ['worst', 'least gain']}
    """
    known = {name: (old, new) for name, (old, new) in losses.items() if old is not None and new is not None}
    by_loss = sorted(known, key=lambda name: (-known[name][1], name))
    by_gain = sorted(known, key=lambda name: (known[name][0] - known[name][1], name))
    ordered = {"worst": by_loss, "least gain": by_gain, "most gain": by_gain[::-1]}
    kept: dict[str, list[str]] = {}
    for reason, most in REASONS.items():
        for name in ordered[reason][:most]:
            kept.setdefault(name, []).append(reason)
    return {name: kept[name] for name in by_loss if name in kept}


def see_cases(
    cases: Cases,
    numbers: Mapping[str, CaseNumbers],
    calibrator: Calibrator,
    background: bool,
    local: Calibrator | None = None,
    budget: int | None = None,
) -> list[SeenCase]:
    """Return the cases to look at with their maps, within the budget; what is no picture and no volume has none."""
    seen: list[SeenCase] = []
    left = BUDGET if budget is None else budget
    cases = as_seen(cases, calibrator)
    for case_id, why in choose_cases({name: one.nll for name, one in numbers.items()}).items():
        case = cases.read(case_id)
        if case.logits.ndim not in (3, 4):
            break
        maps = maps_of(case, layers_of(case, calibrator, local), background, cases.has_offset)
        left -= size_of(maps)
        if seen and left < 0:
            break
        seen.append(SeenCase(case_id, why, **structs.asdict(numbers[case_id]), **structs.asdict(maps)))
    return seen


def size_of(maps: CaseMaps) -> int:
    """Return how many characters the pictures of a case have."""
    found = [value for each in maps.slices for value in structs.asdict(each).values() if isinstance(value, dict)]
    return sum(len(each["png"] if "png" in each else each["jpeg"]) for each in found)


def slice_of(volume: NDArray[Any], interest: NDArray[Any]) -> Index:
    """Return the index of the slice to show: across the shortest axis of space, where `interest` sums to most.

    >>> slice_of(np.zeros((5, 4, 2)), np.ones((5, 4, 2)) * [1, 2])
    (slice(None, None, None), slice(None, None, None), 1)
    """
    everything: list[slice | int] = [slice(None)] * volume.ndim
    if volume.ndim >= 3:
        axis = int(np.argmin(volume.shape))
        others = tuple(number for number in range(volume.ndim) if number != axis)
        everything[axis] = int(interest.sum(axis=others).argmax())
    return tuple(everything)


def picture_of(case: Case, index: Index) -> Encoded | None:
    """Return a slice of a case's image: a picture as it is, of other images the last channel."""
    if case.image is None:
        return None
    channels = case.image.numpy()[(slice(None), *index)]
    return encode_values(channels if len(channels) == 3 else channels[-1])


def encode_picture(image: NDArray[np.floating], index: Index) -> Encoded:
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
