"""No calibration, temperature scaling and ensemble temperature scaling."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from segcal import make_calibrator


def test_nothing_happens_to_the_logits_of_the_identity():
    logits = torch.randn(4, 3, 7)
    calibrator = make_calibrator("identity", 3)
    assert torch.equal(calibrator.scores(logits), logits)
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(logits, 1), rtol=1e-6, atol=1e-6)


def test_logits_are_divided_by_the_temperature(filled, voxels):
    found = filled("ts", 4, inverse_temperature=1 / 2.5)(voxels(4)).exp()
    np.testing.assert_allclose(found, softmax(voxels(4).numpy() / 2.5, -1), rtol=1e-12)


def test_near_ties_survive_a_large_offset_and_a_small_scale(filled):
    """Multiplying first would round classes that are 1e-4 apart at 1e3 to other distances."""
    logits = torch.tensor([[1000.0, 1000.0001, 999.0]])
    scores = filled("ts", 3, inverse_temperature=1e-3).scores(logits)
    gap = float(logits[0, 1] - logits[0, 0])
    assert gap > 0
    np.testing.assert_allclose(float(scores[0, 1] - scores[0, 0]), gap * 1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    "weights", [(0.6, 0.3, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.0, 0.5), (6.0, 3.0, 1.0)]
)
def test_ets_is_the_mixture_of_tempered_original_and_uniform(weights, filled, voxels):
    """Only the ratios of the weights count."""
    z, (first, second, third) = voxels(4).numpy(), np.array(weights) / sum(weights)
    found = filled("ets", 4, inverse_temperature=0.4, mixture=weights)(voxels(4)).exp()
    np.testing.assert_allclose(found, first * softmax(0.4 * z, -1) + second * softmax(z, -1) + third / 4, rtol=1e-10)


def test_probabilities_that_underflow_keep_their_logarithm(filled):
    found = filled("ets", 2, inverse_temperature=2.0, mixture=(0.5, 0.5, 0.0))(torch.tensor([[0.0, -300.0]]))
    assert found[0].tolist() == pytest.approx([0.0, np.log(0.5) - 300], rel=1e-5)


def test_uniform_mass_makes_all_classes_equal_and_reverses_none(filled):
    scores = filled("ets", 3, mixture=(0.0, 0.0, 1.0)).scores(torch.tensor([[1.0, 3.0, 2.0]]))
    assert len(scores.unique()) == 1
