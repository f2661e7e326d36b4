"""Sums of trust against searches in numpy, in both types, with numbers at the thresholds themselves."""

import numpy as np
import pytest
import torch

from segcal.kernels.trust_numba import count_alike, sum_voxels
from segcal.trust.sums import CONFIDENT, THRESHOLDS


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_probability_reaches_the_thresholds_that_a_search_finds(dtype):
    limits = THRESHOLDS.astype(dtype)
    rng = np.random.default_rng(0)
    p = np.concatenate([10 ** rng.uniform(-7, -0.31, 3000), 1 - 10 ** rng.uniform(-7, -0.31, 3000), rng.random(3000)])
    scores = np.log(np.stack([p, 1 - p])).astype(dtype)
    labels = rng.integers(-1, 2, len(p))
    before, edge = scores.argmax(0), np.zeros(len(p), bool)
    given = (torch.from_numpy(each) for each in (scores, before, edge))
    found = sum_voxels(*given, None, torch.from_numpy(labels), THRESHOLDS, CONFIDENT)
    exact = np.exp(scores.astype(np.float64))
    exact /= exact.sum(0)
    known = labels >= 0
    bins = np.searchsorted(limits.astype(np.float64), exact, side="right")
    # A probability within rounding of a threshold may lie on either side of it.
    near = np.abs(exact[..., None] - limits).min(-1) < 4 * np.finfo(dtype).eps * exact
    for c in range(2):
        expected = np.bincount(bins[c, known], minlength=66)
        assert np.abs(found.histograms[2, c] - expected).sum() <= 2 * near[c, known].sum()
        own = labels == c
        expected = np.bincount(bins[c, own], minlength=66)
        assert np.abs(found.histograms[0, c] - expected).sum() <= 2 * near[c, own].sum()
    assert found.histograms[2].sum() == 2 * known.sum()
    assert near.mean() < 0.01


def test_maps_are_counted_pair_by_pair():
    maps = np.random.default_rng(0).integers(0, 3, (4, 500)).astype(np.uint8)
    maps[:, :300] = maps[0, :300]
    voxels, both = count_alike(maps, 3)
    for one in range(4):
        assert voxels[one].tolist() == np.bincount(maps[one], minlength=3).tolist()
        for other in range(one + 1, 4):
            expected = [((maps[one] == c) & (maps[other] == c)).sum() for c in range(3)]
            assert both[one, other].tolist() == expected
