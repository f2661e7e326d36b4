import numpy as np
import pytest

from segcal import resample
from segcal.resample import draw_counts, row_blocks
from segcal.summary import Draws


@pytest.mark.parametrize(("times", "size"), [(0, 3), (1, 1), (7, 5), (50, 13)])
def test_very_many_draws_are_the_same_draws_in_less_room(times, size, monkeypatch):
    plain = draw_counts(np.random.default_rng(3), times, size)
    assert plain.dtype == float
    assert plain.shape == (times, size)
    assert (plain.sum(1) == size).all()
    monkeypatch.setattr(resample, "LARGE", 0)
    small = draw_counts(np.random.default_rng(3), times, size)
    assert small.dtype == (np.uint8 if times else float)
    assert np.array_equal(small, plain)
    assert np.array_equal(np.concatenate(list(row_blocks(small))), small)


def test_means_of_very_many_draws_are_those_of_few(monkeypatch):
    values = [np.array([0.3, np.nan, 0.7, 0.2, 0.1])]
    plain = Draws([5], 40, seed=1).means(values)
    monkeypatch.setattr(resample, "LARGE", 100)
    assert np.allclose(Draws([5], 40, seed=1).means(values), plain, rtol=1e-14)
