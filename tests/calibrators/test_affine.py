"""Vector, matrix and conditional affine scaling against plain NumPy and the authors' library.

The dense form of CMS is in tests/paper/test_dense_cms.py.
"""

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import log_softmax

from segcal import make_calibrator

W = [[1, 0.1, -0.2], [0, 2, 0.3], [0.5, 0, 1]]
B = [0.1, -0.2, 0.3]
LAM, MU = 0.3, 0.07
CMS = {"cms_ap": "CMSap", "cms_op": "CMSop"}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def as_image(voxels):
    return voxels.reshape(2, 5, -1, voxels.shape[1]).movedim(-1, 1)


def as_voxels(image):
    return image.movedim(1, -1).reshape(-1, image.shape[1])


def test_vs_ti_is_temperature_with_a_class_bias(filled, voxels):
    found = filled("vs_ti", 3, scale=[0.6], bias=B)(voxels(3))
    torch.testing.assert_close(found, filled("vs", 3, scale=[0.6] * 3, bias=B)(voxels(3)))


def test_the_penalty_of_vs_leaves_one_common_scale_free(filled):
    assert float(filled("vs", 3, scale=[2.0, 2.0, 2.0]).penalty(1.0, 1.0)) == 0
    found = filled("vs", 3, scale=[1.0, 2.0, 3.0], bias=B).penalty(0.01, 0.1)
    assert float(found) == pytest.approx(0.01 * 2 / 3 + 0.1 * 0.14 / 3)
    assert float(filled("vs_ti", 3, scale=[5.0], bias=B).penalty(0.01, 0.1)) == pytest.approx(0.1 * 0.14 / 3)


def test_log_probabilities_far_below_underflow_stay_finite(filled):
    out = filled("dc", 3, weight=W, bias=B)(torch.tensor([[0.0, -1e4, -2e4]]))
    assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize(("name", "peer"), [("vs", "VS"), ("ms", "MS"), ("dc", "DC"), ("ms_c", "MSc")])
def test_map_and_penalty_are_those_of_the_authors_library(name, peer, fiducio, filled, voxels):
    weight = np.abs(random(5)) if name == "vs" else random(5, 4 if name == "ms_c" else 5, seed=2)
    bias, own = random(5, seed=3), {"gauge": 0.8} if name == "ms_c" else {}
    ours = filled(name, 5, **{"scale" if name == "vs" else "weight": weight}, bias=bias, **own)
    theirs = getattr(fiducio, peer)() if name == "vs" else getattr(fiducio, peer)(lambda_reg=LAM, mu_reg=MU)
    theirs._init_params(5)
    theirs._weight, theirs._bias = torch.as_tensor(weight), torch.as_tensor(bias)
    theirs._row_sum = torch.tensor(0.8, dtype=torch.float64)
    seen = voxels(5).log_softmax(1) if name == "dc" else voxels(5)
    expected = torch.log_softmax(theirs._map_logits(seen), 1)
    torch.testing.assert_close(ours(voxels(5)), expected, rtol=0, atol=1e-10)
    if name != "vs":  # theirs has none
        assert float(ours.penalty(LAM, MU)) == pytest.approx(float(theirs._regularization()), rel=1e-12)


def test_the_predicted_class_selects_the_map_of_cdc_and_of_tied_classes_the_first(filled, voxels):
    weight, bias = random(4, 4, 4), random(4, 4, seed=1)
    logits = torch.cat([voxels(4), torch.tensor([[1.0, 2.0, 2.0, 0.0]])])
    found = filled("cdc", 4, weight=weight, bias=bias)(logits).numpy()
    for z, q in zip(logits.numpy(), found, strict=True):
        i = int(np.argmax(z))
        np.testing.assert_allclose(q, log_softmax(weight[i] @ log_softmax(z) + bias[i]), rtol=1e-9, atol=1e-10)


def their_penalty(theirs, weights, biases):
    maps = [theirs._logit_affine(len(weights), c, *each) for c, each in enumerate(zip(weights, biases, strict=True))]
    return float(torch.stack([theirs._ms_regularization(*one, LAM, MU) for one in maps]).mean())


def test_map_and_penalty_of_cdc_are_those_of_the_authors_library(fiducio, filled, voxels):
    weight, bias = random(5, 5, 5), random(5, 5, seed=1)
    theirs = fiducio.CDC()
    theirs._init_params(5)
    theirs._raw_b, theirs._raw_mu = torch.as_tensor(weight).mT.contiguous(), torch.as_tensor(bias)  # it multiplies rows
    ours = filled("cdc", 5, weight=weight, bias=bias)
    expected = torch.log_softmax(theirs._map_logits(voxels(5).log_softmax(1)), 1)
    torch.testing.assert_close(ours(voxels(5)), expected, rtol=0, atol=1e-10)
    expected = their_penalty(theirs, theirs._raw_b, theirs._raw_mu)
    assert float(ours.penalty(LAM, MU)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", CMS)
def test_cms_is_that_of_the_authors_and_over_the_gauge_its_penalty_is_less(name, classes, fiducio, filled, voxels):
    rng, gaps = np.random.default_rng(0), classes - 1
    A = torch.as_tensor(rng.random((classes, gaps, gaps)) + 0.01)
    drops = torch.as_tensor(rng.random((classes, gaps)) + 0.01)
    ours = filled(name, classes, weight=A, bias=drops)
    theirs = getattr(fiducio, CMS[name])(lambda_reg=LAM, mu_reg=MU)
    theirs._init_params(classes)
    inverse = lambda y: y + torch.log(-torch.expm1(-y))  # noqa: E731  of softplus
    raw_A, raw_drops = torch.empty_like(A), torch.empty_like(drops)
    for i in range(classes):
        # We swap class 0 into the winner's place; they list the others in ascending order.
        places = [*range(1, classes)]
        if name == "cms_ap" and i > 0:
            places = [i, *(k for k in range(1, classes) if k != i)]
        index = torch.tensor(places) - 1
        raw_A[i], raw_drops[i] = A[i][index][:, index], drops[i][index]
    theirs._raw_b, theirs._raw_mu = inverse(raw_A), inverse(raw_drops)
    expected = torch.log_softmax(theirs._map_logits(voxels(classes).log_softmax(1)), 1)
    torch.testing.assert_close(ours(voxels(classes)), expected, rtol=0, atol=1e-9)
    at_their_gauge = float(ours.penalty(LAM, MU))
    expected = their_penalty(theirs, theirs._positive(theirs._raw_b), theirs._positive(theirs._raw_mu))
    assert at_their_gauge == pytest.approx(expected, rel=1e-10)

    def over_gauge(flat):
        ours.gauge.requires_grad_(False).copy_(torch.as_tensor(flat).reshape(ours.gauge.shape))
        ours.gauge.requires_grad_().grad = None
        value = ours.penalty(LAM, MU)
        value.backward()
        return value.item(), ours.gauge.grad.numpy().ravel()

    start = ours.gauge.numpy().ravel().copy()
    best = scipy.optimize.minimize(over_gauge, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    assert best.fun < at_their_gauge * (1 - 1e-3)


@pytest.mark.parametrize("name", CMS)
def test_the_gauge_changes_no_probability(name, randomise, voxels):
    calibrator = randomise(make_calibrator(name, 4)).requires_grad_(False)
    before = calibrator(voxels(4))
    calibrator.gauge.add_(5)
    assert torch.equal(calibrator(voxels(4)), before)


@pytest.mark.parametrize("name", CMS)
def test_tied_classes_are_taken_in_ascending_order(name, randomise):
    """The lowest index wins, and what a tie becomes follows the same rule."""
    calibrator = randomise(make_calibrator(name, 4))
    scores = calibrator.scores(torch.tensor([[1.0, 5.0, 5.0, 5.0]]))[0].tolist()
    assert scores[1] == max(scores)
    if name == "cms_op":
        assert scores[1] >= scores[2] >= scores[3] >= scores[0]
