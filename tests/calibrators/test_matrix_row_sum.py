import numpy as np
import pytest
import torch

from segcal import make_calibrator


def filled(weight, bias, row_sum):
    calibrator = make_calibrator("ms_c", len(bias))
    with torch.no_grad():
        calibrator.weight.copy_(torch.as_tensor(weight))
        calibrator.bias.copy_(torch.as_tensor(bias))
        calibrator.gauge.fill_(row_sum)
    return calibrator


def full(weight, row_sum):
    return np.concatenate([weight, row_sum - weight.sum(1, keepdims=True)], axis=1)


@pytest.mark.parametrize("row_sum", [0.0, 1.1, -3.0])
def test_it_is_matrix_scaling_with_the_reconstructed_matrix(row_sum, voxels):
    rng = np.random.default_rng(0)
    weight, bias, logits = rng.normal(size=(4, 3)), rng.normal(size=4), voxels(4)
    plain = make_calibrator("ms", 4)
    with torch.no_grad():
        plain.weight.copy_(torch.as_tensor(full(weight, row_sum)))
        plain.bias.copy_(torch.as_tensor(bias))
        ours = filled(weight, bias, row_sum)
        torch.testing.assert_close(ours(logits), plain(logits), rtol=1e-10, atol=1e-10)
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(plain.penalty(0.3, 0.07)), rel=1e-12)


def test_a_new_one_costs_nothing():
    with torch.no_grad():
        assert float(make_calibrator("ms_c", 5).penalty(1.0, 1.0)) == 0


def test_map_and_penalty_are_those_of_the_authors_library(fiducio, voxels):
    rng = np.random.default_rng(3)
    weight, bias, logits = rng.normal(size=(5, 4)), rng.normal(size=5), voxels(5)
    theirs = fiducio.MSc(lambda_reg=0.3, mu_reg=0.07)
    theirs._init_params(5)
    theirs._weight, theirs._bias = torch.as_tensor(weight), torch.as_tensor(bias)
    theirs._row_sum = torch.tensor(0.8, dtype=torch.float64)
    ours = filled(weight, bias, 0.8)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-10)
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(theirs._regularization()), rel=1e-12)
