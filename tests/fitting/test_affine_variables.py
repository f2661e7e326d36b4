import pytest
import torch

from segcal import make_calibrator
from segcal.fitting.affine_variables import bounds, names, pack, penalised, penalty_matrices, write

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
def test_the_penalty_matrices_square_what_the_calibrator_penalises(name, randomise):
    calibrator = make_calibrator(name, 4)
    randomise(calibrator)
    theta = pack(calibrator)[:1]
    off_diagonal, offsets = penalised(calibrator, theta)
    for matrix, values, count in zip(penalty_matrices(calibrator), (off_diagonal, offsets), (12, 4), strict=True):
        expected = float(values.square().sum()) / count
        assert float(theta[0] @ matrix @ theta[0]) == pytest.approx(expected, rel=1e-10)


def test_the_bounds_of_the_definitions_are_used():
    low, high = bounds(make_calibrator("dc", 3))
    listed = dict(zip(names(make_calibrator("dc", 3)), torch.stack([low, high], 1).tolist(), strict=True))
    assert listed["weight[1, 1]"] == [1e-3, 1e3]
    assert listed["weight[1, 2]"] == [-1e3, 1e3]
    assert listed["bias[0]"] == [-1e3, 1e3]
