import numpy as np
import pytest
import torch

from segcal import CALIBRATORS, make_calibrator

AFFINE = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]
NAMES = [name for name in CALIBRATORS if make_calibrator(name, 2).fitted_by == "convex"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_packing(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    other = make_calibrator(name, 4)
    other.set_theta(calibrator.theta())
    for a, b in zip(calibrator.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_a_name_and_bounds_that_hold_the_identity(name):
    calibrator = make_calibrator(name, 4)
    theta, (low, high), names = calibrator.theta(), calibrator.bounds(), calibrator.variable_names()
    assert len(names) == len(set(names)) == theta.shape[1] == len(low) == len(high)
    assert bool((low <= theta).all() & (theta <= high).all())


@pytest.mark.parametrize("name", AFFINE)
def test_the_penalty_matrices_are_mean_squares_of_the_full_map(name, randomise):
    calibrator = make_calibrator(name, 4)
    randomise(calibrator)
    theta = calibrator.theta().detach()[:1]
    W, b = (x[0].numpy() for x in calibrator.full_map(*calibrator._unpack(theta)))
    off = W[~np.eye(4, dtype=bool)]
    expected = [(off**2).mean(), (b**2).mean(), (np.diag(W) ** 2).mean()]
    for (matrix, count), value in zip(calibrator.squares(), expected, strict=True):
        assert float(theta[0] @ matrix @ theta[0]) / count == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_squares_are_the_penalty(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    theta, squares = calibrator.theta().detach(), calibrator.squares()
    for lam, mu in ((0.3, 0.0), (0.0, 0.7)):
        parts = [s * float(one @ q @ one) / n for one in theta for s, (q, n) in zip((lam, mu), squares, strict=False)]
        assert sum(parts) / len(theta) == pytest.approx(float(calibrator.penalty(lam, mu).detach()), rel=1e-9)


@pytest.mark.parametrize("name", AFFINE)
def test_the_centre_of_the_penalty_is_temperature_scaling(name):
    calibrator = make_calibrator(name, 4)
    calibrator.set_theta(calibrator.anchor(0.37).expand(calibrator.num_experts, -1))
    logits = torch.randn(50, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(calibrator(logits), (0.37 * logits).log_softmax(1))


def test_the_bounds_of_the_definitions_are_used():
    calibrator = make_calibrator("dc", 3)
    listed = dict(zip(calibrator.variable_names(), torch.stack(calibrator.bounds(), 1).tolist(), strict=True))
    assert listed["weight[1, 1]"] == [1e-3, 1e3]
    assert listed["weight[1, 2]"] == [-1e3, 1e3]
    assert listed["bias[0]"] == [-1e3, 1e3]


def test_vector_scaling_names_scales_and_biases_and_writes_them():
    calibrator = make_calibrator("vs", 3)
    assert calibrator.variable_names() == ["scale[0]", "scale[1]", "scale[2]", "bias[0]", "bias[1]", "bias[2]"]
    calibrator.set_theta(torch.arange(1.0, 7.0, dtype=torch.float64)[None])
    assert (calibrator.scale.tolist(), calibrator.bias.tolist()) == ([1, 2, 3], [4, 5, 6])
    assert make_calibrator("ts", 3).variable_names() == ["inverse_temperature"]


@pytest.mark.parametrize(("name", "strengths"), [("vs", (True, True)), ("vs_ti", (False, True))])
def test_a_common_scale_has_no_spread_to_penalise(name, strengths):
    assert make_calibrator(name, 3).has_penalty == strengths
