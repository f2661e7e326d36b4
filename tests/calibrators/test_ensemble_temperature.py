import numpy as np
import pytest
import torch

from segcal import make_calibrator


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def made(beta, weights, classes):
    calibrator = make_calibrator("ets", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(beta)
        calibrator.mixture.copy_(torch.tensor(weights, dtype=torch.float64))
    return calibrator


@pytest.mark.parametrize(
    "weights", [(0.6, 0.3, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.0, 0.5)]
)
def test_it_is_the_mixture_of_tempered_original_and_uniform(weights, voxels):
    logits = voxels(4)
    with torch.no_grad():
        found = made(0.4, weights, 4)(logits).exp().numpy()
    z = logits.numpy()
    expected = weights[0] * softmax(0.4 * z) + weights[1] * softmax(z) + weights[2] / 4
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_probabilities_that_underflow_keep_their_logarithm():
    with torch.no_grad():
        found = made(2.0, (0.5, 0.5, 0.0), 2)(torch.tensor([[0.0, -300.0]]))
    assert found[0].tolist() == pytest.approx([0.0, np.log(0.5) - 300], rel=1e-5)


def test_uniform_mass_makes_all_classes_equal_and_reverses_none():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    with torch.no_grad():
        assert len(made(1.0, (0.0, 0.0, 1.0), 3).scores(logits).unique()) == 1


def test_only_the_ratios_of_the_weights_count(voxels):
    logits = voxels(3)
    with torch.no_grad():
        torch.testing.assert_close(made(0.7, (0.6, 0.3, 0.1), 3)(logits), made(0.7, (6.0, 3.0, 1.0), 3)(logits))
