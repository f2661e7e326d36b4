import numpy as np
import pytest

from segcal.demo.tasks.fields import blobs, clouds, displaced, smooth


@pytest.mark.parametrize("shape", [(48, 60), (20, 24, 31)])
@pytest.mark.parametrize("make", [lambda rng, shape: blobs(rng, shape, 2.0), clouds])
def test_fields_have_mean_zero_and_standard_deviation_one(make, shape):
    field = make(np.random.default_rng(0), shape)
    assert field.shape == shape
    assert field.mean() == pytest.approx(0, abs=1e-3)
    assert field.std() == pytest.approx(1, abs=1e-3)


def neighbour_correlation(field, axis, apart):
    return float((field * np.roll(field, apart, axis)).mean())


def test_blobs_are_as_wide_as_asked():
    field = blobs(np.random.default_rng(1), (200, 220), 3.0)
    # White noise smoothed by a Gaussian of deviation s has correlation exp(-d^2 / 4 s^2) at distance d.
    for apart in (2, 5):
        expected = np.exp(-(apart**2) / 36)
        assert neighbour_correlation(field, 0, apart) == pytest.approx(expected, abs=0.06)
        assert neighbour_correlation(field, 1, apart) == pytest.approx(expected, abs=0.06)


def test_blobs_can_be_thinner_along_one_axis():
    field = blobs(np.random.default_rng(1), (200, 220), 4.0, stretch=(1.0, 0.25))
    assert neighbour_correlation(field, 0, 3) > 0.8
    assert neighbour_correlation(field, 1, 3) < 0.3


def test_smoothing_keeps_constants_and_spreads_a_point():
    assert smooth(np.full((5, 7), 2.0, np.float32), 1.0, (0, 1)) == pytest.approx(2.0)
    point = np.zeros((1, 15), np.float32)
    point[0, 7] = 1
    spread = smooth(point, 1.0, (1,))[0]
    taps = np.exp(-0.5 * np.arange(-3, 4) ** 2)
    assert spread[4:11] == pytest.approx(taps / taps.sum(), abs=1e-6)


def test_a_shift_reads_from_the_moved_place_and_stops_at_the_border():
    array = np.arange(12).reshape(3, 4)
    moved = displaced(array, [np.zeros((3, 4)), np.full((3, 4), 1.2)])
    assert moved[0].tolist() == [1, 2, 3, 3]
