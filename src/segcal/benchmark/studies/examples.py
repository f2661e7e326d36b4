"""Which slice of a case a figure shows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.cases.base import Case
from segcal.report.pictures import encode_values


def slice_of(volume: NDArray[Any], interest: NDArray[Any]) -> tuple[Any, ...]:
    """Return the index of the slice to show: across the shortest axis of space, where `interest` sums to most.

    >>> slice_of(np.zeros((5, 4, 2)), np.ones((5, 4, 2)) * [1, 2])
    (slice(None, None, None), slice(None, None, None), 1)
    """
    everything: list[Any] = [slice(None)] * volume.ndim
    if volume.ndim < 3:
        return tuple(everything)
    axis = int(np.argmin(volume.shape))
    others = tuple(number for number in range(volume.ndim) if number != axis)
    everything[axis] = int(interest.sum(axis=others).argmax())
    return tuple(everything)


def picture_of(case: Case, index: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return a slice of a case's image: a picture as it is, of other images the last channel."""
    if case.image is None:
        return None
    channels = case.image.numpy()[(slice(None), *index)]
    return encode_values(channels if len(channels) == 3 else channels[-1])
