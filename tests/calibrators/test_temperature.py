import numpy as np
import torch

from segcal import make_calibrator


def test_logits_are_divided_by_the_temperature(voxels):
    calibrator = make_calibrator("ts", 4)
    logits = voxels(4)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(1 / 2.5)
        found = calibrator(logits).exp().numpy()
    for z, q in zip(logits.numpy(), found, strict=True):
        np.testing.assert_allclose(q, np.exp(z / 2.5) / np.exp(z / 2.5).sum(), rtol=1e-12)


def test_near_ties_survive_a_large_offset_and_a_small_scale():
    """Multiplying first would round classes that are 1e-4 apart at 1e3 to other distances."""
    logits = torch.tensor([[1000.0, 1000.0001, 999.0]])
    calibrator = make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(1e-3)
        scores = calibrator.scores(logits)
    gap = float(logits[0, 1] - logits[0, 0])
    assert gap > 0
    np.testing.assert_allclose(float(scores[0, 1] - scores[0, 0]), gap * 1e-3, rtol=1e-5)
