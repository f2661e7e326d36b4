import numpy as np
import pytest
import torch

from segcal import make_calibrator


def random_experts(classes, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(classes, classes, classes)), rng.normal(size=(classes, classes))


def filled(weight, bias):
    calibrator = make_calibrator("cdc", bias.shape[1])
    with torch.no_grad():
        calibrator.weight.copy_(torch.as_tensor(weight))
        calibrator.bias.copy_(torch.as_tensor(bias))
    return calibrator


def log_softmax(s):
    return s - np.log(np.exp(s - s.max()).sum()) - s.max()


def test_the_predicted_class_selects_the_map(voxels):
    weight, bias = random_experts(4, 0)
    logits = voxels(4)
    with torch.no_grad():
        found = filled(weight, bias)(logits).numpy()
    for z, q in zip(logits.numpy(), found, strict=True):
        i = int(np.argmax(z))
        np.testing.assert_allclose(q, log_softmax(weight[i] @ log_softmax(z) + bias[i]), rtol=1e-9, atol=1e-10)


def test_of_tied_classes_the_first_selects(voxels):
    weight, bias = random_experts(3, 1)
    with torch.no_grad():
        found = filled(weight, bias)(torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64))[0].numpy()
    x = log_softmax(np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(found, log_softmax(weight[1] @ x + bias[1]), rtol=1e-10)


def test_map_and_penalty_are_those_of_the_authors_library(fiducio, voxels):
    weight, bias = random_experts(5, 2)
    logits = voxels(5)
    theirs = fiducio.CDC()
    theirs._init_params(5)
    theirs._raw_b, theirs._raw_mu = torch.as_tensor(weight).mT.contiguous(), torch.as_tensor(bias)  # it multiplies rows
    ours = filled(weight, bias)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits.log_softmax(1)), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-10)
        penalties = [
            theirs._ms_regularization(*theirs._logit_affine(5, c, theirs._raw_b[c], theirs._raw_mu[c]), 0.3, 0.07)
            for c in range(5)
        ]
        assert float(ours.penalty(0.3, 0.07)) == pytest.approx(float(torch.stack(penalties).mean()), rel=1e-12)
