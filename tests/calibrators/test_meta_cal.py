import numpy as np
import pytest
import torch

from segcal import audit, make_calibrator
from segcal.calibrators.meta_cal import entropy
from segcal.errors import InputError


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def made(name, threshold, temperature, **options):
    calibrator = make_calibrator(name, 4, **options)
    with torch.no_grad():
        calibrator.threshold.fill_(threshold)
        calibrator.inverse_temperature.fill_(1 / temperature)
    return calibrator


def entropies(z):
    p = softmax(z)
    return -(p * np.log(p)).sum(-1)


@pytest.mark.parametrize("name", ["meta_cal", "meta_cal_large_t"])
def test_below_the_threshold_it_is_a_temperature_and_above_it_almost_uniform(name, voxels):
    with torch.no_grad():
        found = made(name, 0.4, 2.0)(voxels(4)).exp().numpy()
    z = voxels(4).numpy()
    sure = entropies(z)[:, None] < 0.4
    assert 0 < sure.sum() < len(z)
    above = np.full_like(z, 0.25) if name == "meta_cal" else softmax(z / 1e4)
    np.testing.assert_allclose(found, np.where(sure, softmax(z / 2), above), atol=1e-12)


def test_the_entropy_is_that_of_the_softmax(voxels):
    np.testing.assert_allclose(entropy(voxels(4))[:, 0], entropies(voxels(4).numpy()), rtol=1e-12)
    assert float(entropy(torch.tensor([[0.0, -2000.0]]))) == 0


def test_uniform_voxels_lose_their_decision_and_the_audit_says_so(voxels):
    calibrator = made("meta_cal", 0.4, 2.0)
    z = voxels(4)
    with torch.no_grad():
        unsure = torch.as_tensor(entropies(z.numpy()) >= 0.4)
        assert (calibrator(z).argmax(1)[unsure] == 0).all()
        assert torch.equal(calibrator(z).argmax(1)[~unsure], z.argmax(1)[~unsure])
    found = {finding.promise: finding for finding in audit(calibrator).findings}
    assert "does not keep the winning class" in found["decision"].statement
    assert found["offset"].holds


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_temperature_keeps_every_decision(dtype, voxels):
    calibrator = made("meta_cal_large_t", 0.0, 1.0, large_temperature=1e10)
    with torch.no_grad():
        assert torch.equal(calibrator(voxels(4).to(dtype)).argmax(1), voxels(4).argmax(1))
    assert audit(calibrator).passed


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 0.0}, "alpha is 0.0, but a share between 0 and 1 is needed"),
        ({"target_accuracy": 1.2}, "target_accuracy is 1.2, but a share between 0 and 1 is needed"),
        ({"n1_max": 0}, "n1_max is 0, but a count of at least 1 is needed"),
        ({"large_temperature": 0.5}, "large_temperature is 0.5, but a number from 1 to 1e10 is needed"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        make_calibrator("meta_cal_large_t", 3, **options)
