import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.metrics import METRICS
from segcal.metrics.needs import Needs
from segcal.metrics.reliability import debiased_calibration_error, expected_calibration_error
from segcal.metrics.smooth import smooth_calibration_error
from segcal.statistics.reliability import Curve

# Made with relplot 1.0.3 (smECE) from the voxels of `make`, whose widths it searches in steps of 1/1024.
RELPLOT = {0: 0.11660598099266355, 1: 0.20541376658433985}


SHARES = st.floats(0, 1)


def make(seed, n=300):
    rng = np.random.default_rng(seed)
    p = 0.5 + rng.random(n) / 2
    return p, (rng.random(n) < p - 0.1 - 0.1 * seed).astype(float)


def by_quadrature(p, right, width, cells=1000):
    """The integral of the smoothed residuals: every residual at the centre of its cell, over six widths."""
    centre = (np.arange(cells) + 0.5) / cells
    at = centre[np.minimum(np.ceil(p * cells).astype(int) - 1, cells - 1)]
    reach = int(6 * width * cells + 0.5) / cells + 0.5 / cells
    weights = np.arange(-int(6 * width * cells + 0.5), int(6 * width * cells + 0.5) + 1) / cells
    norm = np.exp(-(weights**2) / (2 * width**2)).sum()
    total = np.zeros(cells)
    for position, residual in zip(at, right - p, strict=True):
        for image in [s * position + 2 * k for k in range(-8, 9) for s in (1, -1)]:
            gap = centre - image
            total += residual * np.where(np.abs(gap) <= reach, np.exp(-(gap**2) / (2 * width**2)), 0) / norm
    return np.abs(total).sum() / len(p)


def curve_of(p, right):
    logits = torch.from_numpy(np.stack([np.log(p) - np.log1p(-p), 0 * p]))
    needs = Needs.of([METRICS["smooth_ece"]])
    return needs.count(logits, torch.from_numpy(1 - right.astype(np.int64))).tables.reliability[1000]["all"]


@pytest.mark.parametrize("seed", [0, 1])
def test_at_its_own_width_the_error_is_the_width(seed):
    p, right = make(seed, 60)
    found = smooth_calibration_error(curve_of(p, right))
    assert by_quadrature(p, right, found) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_that_of_relplot_within_a_step_of_its_search(seed):
    assert smooth_calibration_error(curve_of(*make(seed))) == pytest.approx(RELPLOT[seed], abs=2e-3)


def test_a_constant_gap_is_the_error_and_nothing_has_none():
    count = np.zeros(1000, np.int64)
    count[700:900] = 5
    confidence = count * (np.arange(1000) + 0.5) / 1000
    curve = Curve(count, (confidence - 0.25 * count), confidence)
    assert smooth_calibration_error(curve) == pytest.approx(0.25, abs=1e-9)
    assert math.isnan(smooth_calibration_error(Curve(0 * count, 0 * count, 0.0 * confidence)))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50), SHARES, SHARES), min_size=1, max_size=8))
def test_smoothing_and_taking_chance_off_add_no_error(voxels):
    count, right, confidence = np.zeros(100, np.int64), np.zeros(100, np.int64), np.zeros(100)
    for place, n, share, within in voxels:
        count[place] += n
        right[place] += round(share * n)
        confidence[place] += n * (place + within) / 100
    curve = Curve(count, right, confidence)
    whole = expected_calibration_error(curve)
    assert 0 <= smooth_calibration_error(curve) <= whole + 1e-9
    assert 0 <= debiased_calibration_error(curve) <= whole + 1e-12
    mean_gap = abs(right.sum() - confidence.sum()) / count.sum()
    assert smooth_calibration_error(curve) >= min(mean_gap, 1) - 1e-9  # smoothing keeps the sum of residuals
