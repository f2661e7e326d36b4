import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.numerics import (
    canonical_logits,
    compute_dtype,
    count_below,
    descending,
    free_energy,
    running_minimum,
    winner,
)


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_types_are_computed_in_float32(dtype, computed):
    assert compute_dtype(dtype) == computed


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_free_energy_is_the_logarithm_of_the_sum_of_exponentials(axis):
    logits = np.random.default_rng(0).normal(size=(3, 4, 5))
    found = free_energy(torch.as_tensor(logits), axis)
    np.testing.assert_allclose(found, np.log(np.exp(logits).sum(axis)), rtol=1e-12)


def test_the_free_energy_of_large_logits_does_not_overflow():
    assert float(free_energy(torch.tensor([[1e4, 1e4]]))) == pytest.approx(1e4 + math.log(2))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), shift=st.floats(-1e3, 1e3))
def test_canonical_logits_are_the_logits_less_their_free_energy_whatever_the_offset(seed, shift):
    logits = torch.as_tensor(np.random.default_rng(seed).normal(size=(6, 4)))
    found = canonical_logits(logits + shift)
    torch.testing.assert_close(found, logits - free_energy(logits)[:, None], rtol=0, atol=1e-9)
    torch.testing.assert_close(free_energy(found), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_of_equal_scores_the_lowest_index_wins(dtype):
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 3, (2000, 7)).astype(np.float64)  # nearly every voxel has a tie
    found = winner(torch.as_tensor(scores).to(dtype))
    assert found.tolist() == [list(row).index(max(row)) for row in scores]


def test_the_winner_may_be_taken_along_any_axis():
    scores = np.random.default_rng(2).normal(size=(3, 4, 5))
    for axis in range(3):
        assert np.array_equal(winner(torch.as_tensor(scores), axis), scores.argmax(axis))


@pytest.mark.parametrize("axis", [1, -1])
def test_both_forms_of_sorting_and_of_the_running_minimum_agree_with_numpy(axis, monkeypatch):
    values = torch.as_tensor(np.random.default_rng(0).integers(0, 4, (50, 6, 5)).astype(np.float32))
    expected = np.argsort(-values.numpy(), axis=axis, kind="stable")
    for exporting in (False, True):
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda now=exporting: now)
        ordered, order = descending(values, axis)
        np.testing.assert_array_equal(order, expected)
        np.testing.assert_array_equal(ordered, np.take_along_axis(values.numpy(), expected, axis))
        np.testing.assert_array_equal(running_minimum(values, axis), np.minimum.accumulate(values.numpy(), axis))


@pytest.mark.parametrize("size", [0, 1, 2, 14, 15, 16, 1023, 1024])
def test_both_forms_of_counting_points_below_agree_with_numpy(size, monkeypatch):
    rng = np.random.default_rng(size)
    points = np.sort(rng.integers(0, 40, size) / 40).astype(np.float32)  # many are equal
    values = np.concatenate([rng.random(200), points, [-1.0, 0.0, 1.0, 2.0]]).astype(np.float32)
    for exporting in (False, True) if size else (False,):
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda now=exporting: now)
        found = count_below(torch.as_tensor(points), torch.as_tensor(values))
        np.testing.assert_array_equal(found, np.searchsorted(points, values))
