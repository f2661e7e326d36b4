import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.losses import spatial as neighbours
from segcal.types import IGNORED


def mean_prior(labels, classes, size, dtype, borders="replicate"):
    return torch.stack(list(neighbours.mean_prior(labels, classes, size, dtype, borders)), 1)


def gaussian_prior(labels, classes, size, sigma, dtype):
    return torch.stack(list(neighbours.gaussian_prior(labels, classes, size, sigma, dtype)), 1)


def plain_gaussian_prior(labels, classes, sigma, dtype):
    return torch.stack(list(neighbours.plain_gaussian_prior(labels, classes, sigma, dtype)), 1)


HALF = torch.tensor([[0, 0, 0, 1, 1]] * 5)[None]  # columns 3 and 4 are class 1


def impulse(axes, size=3):
    """The weights of a window, from the response to one voxel of class 1."""
    labels = torch.zeros((1, *(2 * size + 1,) * axes), dtype=torch.int64)
    labels[(0, *(size,) * axes)] = 1
    return labels


@pytest.mark.parametrize(
    ("sigma", "face", "corner"), [(0.5, 0.1100996, 0.0149004), (1, 0.0778074, 0.0471926), (2, 0.0664012, 0.0585988)]
)
def test_the_window_of_svls_in_the_plane(sigma, face, corner):
    response = gaussian_prior(impulse(2), 2, 3, sigma, torch.float64)[0, 1]
    assert float(response[3, 3]) == pytest.approx(0.5, abs=1e-12)
    assert float(response[3, 4]) == pytest.approx(face, abs=5e-8)
    assert float(response[2, 4]) == pytest.approx(corner, abs=5e-8)
    assert float(response.sum()) == pytest.approx(1, abs=1e-12)


def test_the_window_of_svls_in_space():
    response = gaussian_prior(impulse(3), 2, 3, 1.0, torch.float64)[0, 1]
    found = [float(response[3, 3, 2]), float(response[2, 3, 4]), float(response[4, 4, 2])]
    assert found == pytest.approx([0.0308235, 0.0186954, 0.0113393], abs=5e-8)


def test_the_worked_map_of_svls():
    target = gaussian_prior(HALF, 2, 3, 1.0, torch.float64)[0, 1]
    for row in target.tolist():
        assert row == pytest.approx([0, 0, 0.172193, 0.827807, 1], abs=5e-7)


@pytest.mark.parametrize(
    ("borders", "expected"), [("replicate", (0.0, 1.0)), ("class_0", (5 / 9, 4 / 9)), ("nothing", (0.0, 4 / 9))]
)
def test_the_worked_corner_under_each_border_rule(borders, expected):
    shares = mean_prior(HALF, 2, 3, torch.float64, borders)[0, :, 0, 4]
    assert shares.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("size", "space"), [(3, (5, 7)), (5, (6, 7)), (3, (3, 5, 4)), (5, (5, 6, 5))])
def test_the_mean_is_the_plain_loop(plain, size, space):
    labels = torch.randint(-1, 4, (2, *space), generator=torch.Generator().manual_seed(size))
    window = plain.mean_window(size, len(space))
    shares = mean_prior(labels, 4, size, torch.float64)
    for number, place, _, _ in plain.voxels(torch.zeros(2, 1, *labels.shape[1:]), labels):
        expected = plain.proportions(labels[number].tolist(), place, 4, window)
        assert shares[(number, slice(None), *place)].tolist() == pytest.approx(expected, abs=1e-14)
    assert (shares.sum(1)[labels == IGNORED] == 0).all()


def test_windows_of_more_than_255_voxels_do_not_overflow():
    shares = mean_prior(torch.ones(1, 17, 18, dtype=torch.int64), 2, 17, torch.float64)
    assert (shares[:, 1] == 1).all()


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
def test_a_tiny_sigma_leaves_the_nearest_neighbours_alone(sigma):
    response = gaussian_prior(impulse(2), 2, 3, sigma, torch.float32)[0, 1]
    assert float(response[3, 4]) == pytest.approx(0.125, rel=1e-4)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([3, 5]), st.floats(0.1, 10))
def test_proportions_are_a_distribution_where_a_voxel_counts(seed, size, sigma):
    labels = torch.randint(-1, 3, (2, 5, 6), generator=torch.Generator().manual_seed(seed))
    valid = (labels != IGNORED).double()
    for shares in (mean_prior(labels, 3, size, torch.float64), gaussian_prior(labels, 3, size, sigma, torch.float64)):
        torch.testing.assert_close(shares.sum(1), valid, rtol=0, atol=1e-12)
        assert float(shares.min()) >= 0


def test_ignored_neighbours_lose_their_weight_and_the_rest_is_renormalised():
    labels = torch.tensor([[[1, IGNORED, 0], [0, 1, IGNORED], [0, 0, 0]]])
    assert mean_prior(labels, 2, 3, torch.float64)[0, 1, 1, 1] == pytest.approx(2 / 7)
    face, corner = 0.0778074, 0.0471926
    expected = (0.5 + corner) / (1 - 2 * face)
    assert float(gaussian_prior(labels, 2, 3, 1.0, torch.float64)[0, 1, 1, 1]) == pytest.approx(expected, abs=1e-6)


def test_a_voxel_whose_neighbours_are_all_ignored_keeps_its_label():
    labels = torch.full((1, 3, 3), IGNORED)
    labels[0, 1, 1] = 2
    for shares in (mean_prior(labels, 3, 3, torch.float64), gaussian_prior(labels, 3, 3, 1.0, torch.float64)):
        assert shares[0, :, 1, 1].tolist() == [0, 0, 1]
    assert plain_gaussian_prior(labels, 3, 1.0, torch.float64)[0, 2, 1, 1] > 0


@pytest.mark.parametrize("space", [(5, 2), (2, 7, 7), ()])
def test_a_kernel_larger_than_the_image_is_refused(space):
    labels = torch.zeros(2, *space, dtype=torch.int64)
    for prior in (
        lambda: mean_prior(labels, 2, 3, torch.float32),
        lambda: gaussian_prior(labels, 2, 3, 1.0, torch.float32),
    ):
        with pytest.raises(InputError, match=r"labels has space \(.*\), but a neighbourhood with kernel_size = 3"):
            prior()
