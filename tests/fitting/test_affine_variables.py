import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.fitting.affine_variables import bounds, names, pack, penalty_matrices, temperature_point, unpack, write

NAMES = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_packing(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    other = make_calibrator(name, 4)
    write(other, pack(calibrator))
    for a, b in zip(calibrator.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_a_name_and_bounds_that_hold_the_identity(name):
    calibrator = make_calibrator(name, 4)
    theta, (low, high) = pack(calibrator), bounds(calibrator)
    assert len(names(calibrator)) == len(set(names(calibrator))) == theta.shape[1] == len(low) == len(high)
    assert bool((low <= theta).all() & (theta <= high).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_penalty_matrices_are_mean_squares_of_the_full_map(name, randomise):
    calibrator = make_calibrator(name, 4)
    randomise(calibrator)
    theta = pack(calibrator)[:1]
    W, b = (x[0].numpy() for x in calibrator.full_map(*unpack(calibrator, theta)))
    off = W[~np.eye(4, dtype=bool)]
    expected = [(off**2).mean(), (b**2).mean(), (np.diag(W) ** 2).mean()]
    for matrix, value in zip(penalty_matrices(calibrator), expected, strict=True):
        assert float(theta[0] @ matrix @ theta[0]) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_centre_of_the_penalty_is_temperature_scaling(name):
    calibrator = make_calibrator(name, 4)
    write(calibrator, temperature_point(calibrator, 0.37).expand(calibrator.num_experts, -1))
    logits = torch.randn(50, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(calibrator(logits), (0.37 * logits).log_softmax(1))


def test_the_bounds_of_the_definitions_are_used():
    low, high = bounds(make_calibrator("dc", 3))
    listed = dict(zip(names(make_calibrator("dc", 3)), torch.stack([low, high], 1).tolist(), strict=True))
    assert listed["weight[1, 1]"] == [1e-3, 1e3]
    assert listed["weight[1, 2]"] == [-1e3, 1e3]
    assert listed["bias[0]"] == [-1e3, 1e3]
