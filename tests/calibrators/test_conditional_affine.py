"""The dense form of the paper is in tests/paper/test_dense_cms.py; here the authors' library, and the gauge."""

import numpy as np
import pytest
import scipy.optimize
import torch

from segcal import make_calibrator
from segcal.calibrators.convex import SMALLEST_SCALE

PEERS = {"cms_ap": "CMSap", "cms_op": "CMSop"}
LAM, MU = 0.3, 0.07


def pair(name, fiducio, classes, seed=0):
    """Our calibrator at the gauge of the authors' library, and theirs, with the same map."""
    rng = np.random.default_rng(seed)
    gaps = classes - 1
    A = torch.as_tensor(rng.random((classes, gaps, gaps)) + 0.01)
    drops = torch.as_tensor(rng.random((classes, gaps)) + 0.01)
    ours = make_calibrator(name, classes)
    theirs = getattr(fiducio, PEERS[name])(lambda_reg=LAM, mu_reg=MU)
    theirs._init_params(classes)
    raw_A, raw_drops = torch.empty_like(A), torch.empty_like(drops)
    with torch.no_grad():
        ours.weight.copy_(A)
        ours.bias.copy_(drops)
        for i in range(classes):
            # We swap class 0 into the winner's place; they list the others in ascending order.
            places = [*range(1, classes)]
            if name == "cms_ap" and i > 0:
                places = [i, *(k for k in range(1, classes) if k != i)]
            index = torch.tensor(places) - 1
            raw_A[i], raw_drops[i] = A[i][index][:, index], drops[i][index]
    inverse = lambda y: y + torch.log(-torch.expm1(-y))  # noqa: E731  of softplus
    theirs._raw_b, theirs._raw_mu = inverse(raw_A), inverse(raw_drops)
    return ours, theirs


def their_penalty(theirs, classes):
    parts = []
    for c in range(classes):
        affine = theirs._logit_affine(
            classes, c, theirs._positive(theirs._raw_b[c]), theirs._positive(theirs._raw_mu[c])
        )
        parts.append(theirs._ms_regularization(*affine, LAM, MU))
    return float(torch.stack(parts).mean())


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", PEERS)
def test_the_map_is_that_of_the_authors_library(name, classes, fiducio, voxels):
    ours, theirs = pair(name, fiducio, classes)
    logits = voxels(classes)
    with torch.no_grad():
        expected = torch.log_softmax(theirs._map_logits(logits.log_softmax(1)), 1)
        torch.testing.assert_close(ours(logits), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", PEERS)
def test_at_their_gauge_the_penalty_is_theirs_and_over_the_gauge_it_is_less(name, classes, fiducio):
    ours, theirs = pair(name, fiducio, classes)
    with torch.no_grad():
        at_their_gauge = float(ours.penalty(LAM, MU))
    assert at_their_gauge == pytest.approx(their_penalty(theirs, classes), rel=1e-10)

    def over_gauge(flat):
        with torch.no_grad():
            ours.gauge.copy_(torch.as_tensor(flat).reshape(ours.gauge.shape))
        ours.gauge.grad = None
        value = ours.penalty(LAM, MU)
        value.backward()
        return value.item(), ours.gauge.grad.numpy().ravel()

    start = ours.gauge.detach().numpy().ravel().copy()
    best = scipy.optimize.minimize(over_gauge, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    assert best.fun < at_their_gauge * (1 - 1e-3)


@pytest.mark.parametrize("name", PEERS)
def test_the_gauge_changes_no_probability(name, randomise, voxels):
    calibrator = randomise(make_calibrator(name, 4))
    logits = voxels(4)
    with torch.no_grad():
        before = calibrator(logits)
        calibrator.gauge.add_(5)
        assert torch.equal(calibrator(logits), before)


@pytest.mark.parametrize("name", PEERS)
def test_the_cone_has_a_floor_on_its_diagonal(name):
    low, high = make_calibrator(name, 4).weight_bounds()
    assert torch.equal(low, SMALLEST_SCALE * torch.eye(3, dtype=torch.float64))
    assert high.unique().tolist() == [1e3]
    assert make_calibrator(name, 4).bias_bounds() == (0.0, 1e3)


@pytest.mark.parametrize("name", PEERS)
def test_tied_classes_are_taken_in_ascending_order(name, randomise):
    """The lowest index wins, and what a tie becomes follows the same rule."""
    calibrator = randomise(make_calibrator(name, 4))
    with torch.no_grad():
        scores = calibrator.scores(torch.tensor([[1.0, 5.0, 5.0, 5.0]]))[0].tolist()
    assert scores[1] == max(scores)
    if name == "cms_op":
        assert scores[1] >= scores[2] >= scores[3] >= scores[0]
