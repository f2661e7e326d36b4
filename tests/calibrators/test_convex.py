"""What a convex calibrator declares is what it does: frames, packing, bounds, penalties, features about a centre."""

import numpy as np
import pytest
import torch

from segcal import CALIBRATORS, ArrayCases, FitConfig, fit, make_calibrator
from segcal.calibrators.affine import scores_from_outputs
from segcal.calibrators.convex import find_centre, inward, outward, take_out

AFFINE = ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"]
NAMES = [name for name in CALIBRATORS if make_calibrator(name, 2).fitted_by == "convex"]
MEAN = torch.tensor([1e4, 0.0, -512.0], dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_packing(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    other = make_calibrator(name, 4)
    other.set_theta(calibrator.theta())
    for a, b in zip(calibrator.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def bounds_of(name, classes):
    calibrator = make_calibrator(name, classes)
    low, high = calibrator.bounds()
    return dict(zip(calibrator.variable_names(), zip(low.tolist(), high.tolist(), strict=True), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_a_name_and_bounds_that_hold_the_identity(name):
    theta, listed = make_calibrator(name, 4).theta().detach(), bounds_of(name, 4)
    assert theta.shape[1] == len(listed)
    low, high = torch.tensor(list(listed.values()), dtype=torch.float64).T
    assert bool((low <= theta).all() & (theta <= high).all())


@pytest.mark.parametrize("name", AFFINE)
def test_diagonals_have_a_floor_cones_begin_at_zero_and_a_gauge_is_free(name):
    lowest = 0.0 if name.startswith("cms") else -1e3
    for variable, bounds in bounds_of(name, 4).items():
        row, _, column = variable.removesuffix("]").partition("[")[2].partition(", ")
        expected = (1e-3 if row == column else lowest, 1e3)
        assert bounds == ((-np.inf, np.inf) if variable.startswith("gauge") else expected), variable


def test_vector_scaling_names_scales_and_biases_and_writes_them():
    calibrator = make_calibrator("vs", 3)
    calibrator.set_theta(torch.arange(1.0, 7.0, dtype=torch.float64)[None])
    assert (calibrator.scale.tolist(), calibrator.bias.tolist()) == ([1, 2, 3], [4, 5, 6])
    expected = {f"scale[{i}]": (1e-3, 1e3) for i in range(3)} | {f"bias[{i}]": (-1e3, 1e3) for i in range(3)}
    assert bounds_of("vs", 3) == expected
    assert bounds_of("ts", 3) == {"inverse_temperature": (1e-3, 1e3)}


@pytest.mark.parametrize("name", NAMES)
def test_the_squares_are_the_penalty(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    theta, squares = calibrator.theta().detach(), calibrator.squares()
    for lam, mu in ((0.3, 0.0), (0.0, 0.7)):
        parts = [s * float(one @ q @ one) for one in theta for s, q in zip((lam, mu), squares, strict=False)]
        assert sum(parts) / len(theta) == pytest.approx(float(calibrator.penalty(lam, mu).detach()), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ts", (False, False)), ("vs_ti", (False, True)), ("conic", (True, False)), ("cms_ap", (True, True))],
)
def test_what_is_penalised_says_which_strengths_there_are(name, expected):
    assert make_calibrator(name, 3).has_penalty == expected


@pytest.mark.parametrize("name", AFFINE)
def test_the_centre_of_the_penalty_is_temperature_scaling(name):
    calibrator = make_calibrator(name, 4)
    calibrator.set_theta(calibrator.anchor(0.37).expand(calibrator.num_experts, -1))
    logits = torch.randn(50, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(calibrator(logits), (0.37 * logits).log_softmax(1))


def test_stacked_drops_never_rise_whatever_the_prefix_sum_rounds():
    """As one computed in parallel may: the second drop of the last row stands for such a rounding."""
    drops = torch.rand(20000, 19) * 10.0 ** torch.randint(-12, 3, (20000, 19))
    scores = scores_from_outputs(drops, "stacked_drops")
    assert bool((scores[:, 1:] <= scores[:, :-1]).all())
    assert scores_from_outputs(torch.tensor([[1.0, -1e-6, 0.5]]), "stacked_drops")[0, 1:3].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("name", AFFINE)
def test_the_frame_and_the_parameters_are_all_that_the_scores_need(name, randomise, voxels):
    """What the solver is told is what the calibrator does."""
    calibrator, logits = randomise(make_calibrator(name, 4)).requires_grad_(False), voxels(4)
    frame, scores = calibrator.frame(logits), calibrator.scores(logits)
    assert (frame.expert is None) == (calibrator.num_experts == 1) == (name in ("ms", "ms_c", "dc"))
    for v in range(len(logits)):
        own = ... if frame.expert is None else int(frame.expert[v])
        linear = calibrator.weight[own] @ frame.features[v] + calibrator.bias[own]
        canonical = scores_from_outputs(linear[None], calibrator.outputs)[0]
        order = torch.arange(4) if frame.order is None else frame.order[v]
        torch.testing.assert_close(scores[v, order], canonical, rtol=0, atol=1e-9)


def test_only_means_that_are_large_beside_the_spread_are_taken_out():
    x = torch.tensor([[100.0, 104.0], [-0.5, 3.0], [1.0, 20.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
    centre = find_centre(4.0, x @ weight, x.square() @ weight, torch.float32)
    assert centre.tolist() == [103.0, 0.0, 0.0]
    assert take_out(x.float(), centre).tolist() == [[-3.0, 1.0], [-0.5, 3.0], [1.0, 20.0]]
    assert find_centre(4.0, x[1:] @ weight, x[1:].square() @ weight, torch.float32) is None
    for moved in (take_out(x, None), inward(x, None), outward(x, None)):
        assert moved is x


@pytest.mark.parametrize("offset", [1e4, 1e5])
def test_a_fit_reaches_its_tolerance_under_a_large_offset_whatever_the_data(offset):
    """Without the centre rounding decides where it ends: at 1e5 a part of these fits stops at 1e-4 or above."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        logits = 3 * rng.normal(size=(4, 300))
        labels = (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(0)
        cases = ArrayCases(logits=[(logits + offset).astype(np.float32)], labels=[labels])
        certificate = fit("ms", cases, config=FitConfig(lam=0.0, mu=0.0)).certificate
        assert certificate.converged
        assert certificate.kkt_residual <= 1e-6
