"""What a case is worth, against sums written out by hand."""

import numpy as np
import pytest
import torch

from segcal.kernels.worth_numba import case_sums


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_sums_of_a_case_are_those_of_their_definitions(kind):
    rng = np.random.default_rng(0)
    count, classes, bins = 20_011, 3, 15  # two parts, and a tile that is not full
    scores = 3 * rng.normal(size=(classes, count)).astype(kind.__repr__().split(".")[1])
    scores[:, :100] = 0.0  # of equal ones the lowest class wins
    labels, weight = rng.integers(classes, size=count), rng.random(count)
    distance = rng.choice([0.0, 2.9, 3.0, 10.0, 20.0, np.inf], size=count)
    given = torch.from_numpy(scores), torch.from_numpy(labels), torch.from_numpy(weight), torch.from_numpy(distance)
    nll, gaps, bands = case_sums(*given, bins, (3.0, 7.0, 15.0))

    wide = scores.astype(float)
    probs = np.exp(wide) / np.exp(wide).sum(0)
    gap = weight * (probs.max(0) - (wide.argmax(0) == labels))
    number = np.ceil(probs.max(0) * bins - 1e-12).astype(int) - 1
    assert nll == pytest.approx(-(weight * np.log(probs[labels, np.arange(count)])).sum(), rel=1e-12)
    assert gaps == pytest.approx(np.bincount(number, gap, bins), abs=1e-9)
    band = np.where(np.isinf(distance), 4, np.digitize(distance, (3.0, 7.0, 15.0)))
    near = np.where(np.isinf(distance), 0.0, distance)
    for row, values in zip(bands, (gap, weight * near, weight), strict=True):
        assert row == pytest.approx(np.bincount(band, values, 5)[:4], abs=1e-9)


def test_without_distances_there_are_no_bands():
    nll, gaps, bands = case_sums(torch.zeros(2, 1), torch.zeros(1, dtype=torch.int32), torch.ones(1), None, 2, (3.0,))
    assert nll == pytest.approx(np.log(2))
    assert gaps.tolist() == [-0.5, 0.0]  # confidence 1/2 is in (0, 1/2], and right
    assert not bands.any()
