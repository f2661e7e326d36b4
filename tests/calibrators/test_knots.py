import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.calibrators.knots import hat_shares, positions, quantile_knots, some_voxels


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(2, 9))
def test_knots_always_increase(values, count):
    found = quantile_knots(torch.tensor(values, dtype=torch.float64), np.linspace(0, 1, count).tolist(), -1e4)
    assert bool((found.diff() > 0).all())


def test_knots_without_values_start_above_what_they_must():
    assert quantile_knots(torch.zeros(0, dtype=torch.float64), [0.1, 0.9], 0.0).tolist() == [0.001, 0.002]


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20))
def test_hats_at_a_position_interpolate_and_continue_the_last_piece(values):
    knots, heights = np.array([0.0, 0.5, 2.0, 7.0]), np.array([0.0, 1.0, 1.5, 6.0, 9.0])
    where = positions(torch.tensor(values, dtype=torch.float64), torch.from_numpy(knots))
    found = torch.from_numpy(heights) @ hat_shares(where, 5)
    line = np.where(np.array(values) > 7, 6.0 + 3.0 * (np.array(values) - 7), np.interp(values, knots, heights[:4]))
    np.testing.assert_allclose(found.numpy(), line, rtol=0, atol=1e-9)


def test_few_of_many_voxels_are_kept_from_every_batch():
    batches = ((torch.full((4, 1 << 17), float(number)), None) for number in range(9))
    logits, context = some_voxels(batches)
    assert logits.numel() <= 1 << 20
    assert len(context) == 0
    counts = torch.bincount(logits[0].long())
    assert int(counts.min()) > 0
    assert int(counts.max()) < 2 * int(counts.min())
