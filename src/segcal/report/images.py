"""Cases to look at: the input, the truth, the prediction, and confidence before and after, as small images in JSON.

A map is ``{"png": text, "low": number, "high": number}``, a PNG in base64. The value of a pixel is low + (high - low) *
byte / 255. So a class index or a flag comes back exactly with low = 0 and high = 255. A image that is only looked at
may be ``{"jpeg": text}``.

Of a volume a few slices across its shortest axis are kept, where there is something to see. Of a large image every
second or third pixel is kept. Confidence and the probability of foreground are stored on one scale, 0 to 1, for all
cases and stages. Of many cases those are kept that a critical reader would ask for, worst first, within a budget.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch
from msgspec import Struct, structs
from numpy.typing import NDArray
from PIL import Image

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case, Cases
from segcal.evaluation.slabs import as_seen, calibrated_scores
from segcal.numerics import canonical_logits, decided, free_energy, winner
from segcal.types import IGNORED

JPEG_QUALITY = 80
# Pixels along the longer side that are kept, of an image and of a slice of a volume.
SIDES = {2: 288, 3: 160}
SLICES = 8
# Temperatures are stored from 0 to this, for all cases alike.
HOTTEST = 5.0
# Of an image whose values are not colours, this share at either end is cut off.
TAIL = 0.5
# Characters of images in all, about; the first case is kept whatever its size.
BUDGET = 1_000_000
Index: TypeAlias = tuple[slice | int, ...]
# A map of whole numbers (None), or of values with what the first and the last of 256 steps mean.
Layer: TypeAlias = tuple[NDArray[Any], tuple[float, float] | None]


class Encoded(TypedDict, total=False):
    """A map (png, low, high) or an image to look at (jpeg)."""

    png: str
    jpeg: str
    low: float
    high: float


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
    raters: Encoded | None = None
    image: Encoded | None = None


class SeenCase(Struct):
    """A case with its numbers before and after calibration; if it is shown why, and every `step`-th pixel of slices."""

    case: str
    why: list[str]
    nll: list[float | None]
    ece: list[float | None]
    dice: list[float | None]
    voxels: int
    flip_rate: float | None
    shape: list[int] = []
    axis: int | None = None
    step: int = 1
    slices: list[SliceMaps] = []


def encode_indices(indices: NDArray[np.integer]) -> Encoded:
    """Return a map of whole numbers; :data:`segcal.types.IGNORED` becomes 255.

    >>> decode_map(encode_indices(np.array([[0, 3], [-1, 1]]))).tolist()
    [[0.0, 3.0], [255.0, 1.0]]
    """
    pixels = np.where(indices == IGNORED, 255, indices).astype(np.uint8)
    return {"png": _text(pixels, "PNG", optimize=True), "low": 0.0, "high": 255.0}


def encode_values(values: NDArray[np.floating], low: float | None = None, high: float | None = None) -> Encoded:
    """Return a map of numbers ``(height, width)`` or ``(3, height, width)``, in 256 steps.

    `low` and `high` are what the bytes 0 and 255 mean, the least and the largest value if not given.
    """
    low = float(values.min()) if low is None else low
    high = float(values.max()) if high is None else high
    steps = np.zeros(values.shape) if high == low else (values - low) / (high - low)
    pixels = np.rint(255 * np.clip(steps, 0, 1)).astype(np.uint8)
    return {"png": _text(pixels, "PNG", optimize=True), "low": low, "high": high}


def encode_jpeg(pixels: NDArray[np.uint8]) -> Encoded:
    """Return an image ``(channels, height, width)`` of one or three channels, to look at."""
    return {"jpeg": _text(pixels if len(pixels) == 3 else pixels[0], "JPEG", quality=JPEG_QUALITY)}


def decode_map(encoded: Encoded) -> NDArray[np.float64]:
    """Return the values of a map, ``(height, width)`` or ``(3, height, width)``; of an image from 0 to 1."""
    text = encoded["jpeg"] if "jpeg" in encoded else encoded["png"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), np.float64)
    low, high = encoded.get("low", 0.0), encoded.get("high", 1.0)
    values: NDArray[np.float64] = low + (high - low) * pixels / 255
    return np.moveaxis(values, 2, 0) if values.ndim == 3 else values


def _text(pixels: NDArray[np.uint8], form: str, **options: int) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.moveaxis(pixels, 0, 2) if pixels.ndim == 3 else pixels).save(stream, form, **options)
    return base64.b64encode(stream.getvalue()).decode()


def layers_of(case: Case, calibrator: Calibrator, local: Calibrator | None = None) -> dict[str, Layer]:
    """Return the maps ``(*space)`` of a case with labels, as :class:`SliceMaps` names them.

    Confidence is that of the predicted class, foreground one minus the probability of class 0. The levels of the free
    energy are those of the voxels that count. `local` is the calibrator whose temperature is shown. Of regions the mask
    has the last one that is on, and confidence is that of the least sure one.
    """
    assert case.labels is not None
    truth, scores = case.labels, calibrated_scores(calibrator, case, "cpu")
    stages = case.logits.to(scores.dtype), scores
    found: dict[str, Layer] = {}
    if case.votes is not None:  # the share of votes that are not for the majority
        differ = 1 - case.votes.count.max(1) / np.maximum(case.votes.cast, 1)
        found["raters"] = (differ[case.votes.code.numpy()], (0.0, 1.0))
    if isinstance(calibrator, PerRegion):
        known = calibrator.regions.last_true(truth)
        assert known is not None
        truth, masks = known, [calibrator.regions.last_on(each > 0) for each in stages]
        sure = [each.abs().amin(0).sigmoid() for each in stages]
        foreground = [each.amax(0).sigmoid() for each in stages]
    else:
        before = winner(stages[0], axis=0)
        masks, probs = [before, decided(before, scores)], [canonical_logits(each, axis=0).exp() for each in stages]
        sure = [each.gather(0, mask[None])[0] for each, mask in zip(probs, masks, strict=True)]
        foreground = [1 - each[0] for each in probs]
        energy = free_energy(stages[0], axis=0).numpy()
        if (counted := energy[truth.numpy() != IGNORED]).size:
            found["energy"] = (energy, (float(counted.min()), float(counted.max())))
        if local is not None:
            found["temperature"] = (temperature_of(case, local), (0.0, HOTTEST))
    found |= {name: (each.numpy(), None) for name, each in zip(("prediction", "prediction_after"), masks, strict=True)}
    shares = zip(("before", "after", "foreground_before", "foreground_after"), (*sure, *foreground), strict=True)
    return found | {"truth": (truth.numpy(), None)} | {name: (each.numpy(), (0.0, 1.0)) for name, each in shares}


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


def slice_amounts(interest: NDArray[Any]) -> tuple[int | None, NDArray[Any]]:
    """Return the shortest axis, across which slices are taken (None for a 2-D image), and how much there is on each."""
    axis = int(np.argmin(interest.shape)) if interest.ndim >= 3 else None
    others = tuple(number for number in range(interest.ndim) if number != axis)
    return axis, interest.sum(axis=others, keepdims=True).ravel()


def slice_index(dims: int, axis: int | None, place: int, step: int | None = None) -> Index:
    """Return the index of a slice across an axis, of every `step`-th pixel of it."""
    return tuple(place if number == axis else slice(None, None, step) for number in range(dims))


def slice_of(volume: NDArray[Any], interest: NDArray[Any]) -> Index:
    """Return the index of the slice to show: across the shortest axis of space, where `interest` sums to most.

    >>> slice_of(np.zeros((5, 4, 2)), np.ones((5, 4, 2)) * [1, 2])
    (slice(None, None, None), slice(None, None, None), 1)
    """
    axis, amounts = slice_amounts(interest)
    return slice_index(volume.ndim, axis, int(amounts.argmax()))


def choose_slices(amounts: NDArray[Any], most: int = SLICES) -> list[int]:
    """Return which slices are shown: spread over those with something to see, and the one with most of it.

    >>> choose_slices(np.array([0, 1, 1, 1, 0]), most=2)
    [1, 3]
    """
    there = np.flatnonzero(amounts)
    if not len(there):
        return [len(amounts) // 2]
    spread = there[np.linspace(0, len(there) - 1, min(most, len(there))).round().astype(int)]
    fullest = int(amounts.argmax())
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
    chosen = {"worst": by_loss[:3], "least gain": by_gain[:2], "most gain": by_gain[-1:]}
    reasons = {name: [reason for reason, names in chosen.items() if name in names] for name in by_loss}
    return {name: why for name, why in reasons.items() if why}


def see_cases(
    cases: Cases,
    numbers: Mapping[str, SeenCase],
    calibrator: Calibrator,
    background: bool,
    local: Calibrator | None = None,
) -> list[SeenCase]:
    """Return the cases to look at with their maps, within the budget; other cases have none.

    `background` says whether foreground means something.
    """
    seen: list[SeenCase] = []
    left = BUDGET
    cases = as_seen(cases, calibrator)
    hidden = set() if cases.has_offset else {"energy"}
    hidden |= set() if background else {"foreground_before", "foreground_after"}
    for case_id, why in choose_cases({name: one.nll for name, one in numbers.items()}).items():
        case = cases.read(case_id)
        if case.logits.ndim not in (3, 4):
            break
        layers = layers_of(case, calibrator, local)
        one = _with_maps(numbers[case_id], case, {name: each for name, each in layers.items() if name not in hidden})
        maps = [value for each in one.slices for value in structs.asdict(each).values() if isinstance(value, dict)]
        left -= sum(len(each["png"] if "png" in each else each["jpeg"]) for each in maps)
        if seen and left < 0:
            break
        seen.append(structs.replace(one, why=why))
    return seen


def _with_maps(one: SeenCase, case: Case, layers: Mapping[str, Layer]) -> SeenCase:
    labels, before, after = (layers[name][0] for name in ("truth", "prediction", "prediction_after"))
    axis, amounts = slice_amounts((labels != IGNORED) & ((before != labels) | (labels > 0)))
    step = max(1, -(-max(labels.shape) // SIDES[labels.ndim]))
    slices = []
    for place in choose_slices(amounts):
        index = slice_index(labels.ndim, axis, place, step)
        same = (before[index] == after[index]).all()
        found = {
            name: encode_indices(values[index]) if levels is None else encode_values(values[index], *levels)
            for name, (values, levels) in layers.items()
            if not (same and name == "prediction_after")
        }
        image = None if case.image is None else encode_image(case.image.numpy(), index)
        slices.append(SliceMaps(place, image=image, **found))
    return structs.replace(one, shape=list(labels.shape), axis=axis, step=step, slices=slices)


def image_of(case: Case, index: Index) -> Encoded | None:
    """Return a slice of a case's image: grey or colours as they are, of other images the last channel."""
    if case.image is None:
        return None
    channels = case.image.numpy()[(slice(None), *index)]
    return encode_values(channels if len(channels) == 3 else channels[-1])


def encode_image(image: NDArray[np.floating], index: Index) -> Encoded:
    """Return a slice of an image as JPEG, to look at: three channels as colours, of any other number the last.

    Where an index leaves voxels out, the image shows the mean of each block instead.
    """
    channels = image if len(image) == 3 else image[-1:]
    low, high = float(channels.min()), float(channels.max())
    if len(channels) == 3 and low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    else:  # a scan, from what most voxels have
        low, high = (float(end) for end in np.percentile(channels, [TAIL, 100 - TAIL]))
    whole = tuple(slice(None) if isinstance(each, slice) else each for each in index)
    steps = np.clip((channels[(slice(None), *whole)] - low) / max(high - low, 1e-12), 0, 1)
    pixels = np.rint(255 * steps).astype(np.uint8)
    height, width = channels[(slice(None), *index)].shape[1:]
    smaller = [np.asarray(Image.fromarray(each).resize((width, height), Image.Resampling.BOX)) for each in pixels]
    return encode_jpeg(np.stack(smaller))
