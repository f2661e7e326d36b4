import math
from types import SimpleNamespace

import pytest
import torch

from segcal.types import IGNORED


def softmax(z):
    top = max(z)
    odds = [math.exp(value - top) for value in z]
    return [value / sum(odds) for value in odds]


def proportions(labels, place, classes, weights):
    """Class proportions around a place of a nested list, from {offset: weight}; beyond the border, the nearest voxel.

    Written for any number of axes, with loops and nothing else.
    """
    sums, total = [0.0] * classes, 0.0
    for offset, weight in weights.items():
        value = labels
        for here, step in zip(place, offset, strict=True):
            value = value[min(max(here + step, 0), len(value) - 1)]
        if value != IGNORED:
            sums[value] += weight
            total += weight
    return [share / total for share in sums]


def offsets(size, axes):
    radius, found = size // 2, [()]
    for _ in range(axes):
        found = [(*known, step) for known in found for step in range(-radius, radius + 1)]
    return found


def mean_window(size, axes):
    return dict.fromkeys(offsets(size, axes), 1.0)


def svls_window(size, axes, sigma):
    """A Gaussian whose centre is set to the sum of the others, as the published code builds it."""
    values = {step: math.exp(-sum(k * k for k in step) / (2 * sigma**2)) for step in offsets(size, axes)}
    centre = (0,) * axes
    values[centre] = sum(value for step, value in values.items() if step != centre)
    return values


def voxels(logits, labels):
    """The voxels that count: (image number, place, logits, label) as plain numbers."""
    for number, truth in enumerate(labels):
        for place in (
            torch.cartesian_prod(*[torch.arange(size) for size in truth.shape]).reshape(-1, truth.ndim).tolist()
        ):
            label = int(truth[tuple(place)])
            if label != IGNORED:
                yield number, tuple(place), logits[(number, slice(None), *place)].tolist(), label


@pytest.fixture
def plain():
    """References of plain Python, independent of the package."""
    return SimpleNamespace(
        softmax=softmax, proportions=proportions, mean_window=mean_window, svls_window=svls_window, voxels=voxels
    )


@pytest.fixture(params=[(5, 7), (3, 5, 4)], ids=["2-D", "3-D"])
def batch(request):
    generator = torch.Generator().manual_seed(11)
    logits = 4 * torch.randn(2, 4, *request.param, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (2, *request.param), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORED
    return logits, labels


@pytest.fixture
def worked():
    """The voxel of the worked examples, as one large flat image of itself: logits (2, -1, 0.5, 7.5), label 0."""
    logits = torch.tensor([2.0, -1.0, 0.5, 7.5], dtype=torch.float64)
    return logits.reshape(1, 4, 1, 1).expand(1, 4, 5, 6).clone(), torch.zeros(1, 5, 6, dtype=torch.int64)
