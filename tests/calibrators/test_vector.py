import numpy as np
import pytest
import torch

from segcal import make_calibrator


def filled(name, classes, scale, bias):
    calibrator = make_calibrator(name, classes)
    with torch.no_grad():
        calibrator.scale.copy_(torch.as_tensor(scale, dtype=torch.float64))
        calibrator.bias.copy_(torch.as_tensor(bias, dtype=torch.float64))
    return calibrator


def log_softmax(s):
    return s - np.log(np.exp(s - s.max()).sum()) - s.max()


def test_each_class_has_its_scale_and_bias(voxels):
    rng = np.random.default_rng(0)
    scale, bias, logits = rng.random(4) + 0.5, rng.normal(size=4), voxels(4)
    with torch.no_grad():
        found = filled("vs", 4, scale, bias)(logits.reshape(3, 20, 4).movedim(-1, 1)).movedim(1, -1).reshape(-1, 4)
    for z, q in zip(logits.numpy(), found.numpy(), strict=True):
        np.testing.assert_allclose(q, log_softmax(scale * z + bias), rtol=1e-10, atol=1e-12)


def test_the_invariant_form_is_temperature_with_a_class_bias(voxels):
    bias, logits = np.array([0.3, -0.2, 0.9]), voxels(3)
    with torch.no_grad():
        found = filled("vs_ti", 3, [0.6], bias)(logits)
        same = filled("vs", 3, [0.6] * 3, bias)(logits)
    torch.testing.assert_close(found, same)


def test_the_penalty_leaves_one_common_scale_free():
    bias = [0.1, -0.2, 0.3]
    with torch.no_grad():
        assert float(filled("vs", 3, [2.0, 2.0, 2.0], [0.0] * 3).penalty(1.0, 1.0)) == 0
        found = float(filled("vs", 3, [1.0, 2.0, 3.0], bias).penalty(0.01, 0.1))
        invariant = float(filled("vs_ti", 3, [5.0], bias).penalty(0.01, 0.1))
    assert found == pytest.approx(0.01 * 2 / 3 + 0.1 * 0.14 / 3)
    assert invariant == pytest.approx(0.1 * 0.14 / 3)


def test_the_map_is_that_of_the_authors_library(fiducio, voxels):
    rng = np.random.default_rng(1)
    scale, bias, logits = torch.as_tensor(rng.random(5) + 0.5), torch.as_tensor(rng.normal(size=5)), voxels(5)
    theirs = fiducio.VS()
    theirs._init_params(5)
    theirs._weight, theirs._bias = scale, bias
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits), 1)
        torch.testing.assert_close(filled("vs", 5, scale, bias)(logits), expected, rtol=0, atol=1e-12)
