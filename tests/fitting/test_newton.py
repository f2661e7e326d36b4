"""The box-constrained Newton method on problems whose answer is known, or found by scipy."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.cases.arrays import ArrayCases
from segcal.fitting import trust_region
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import fit
from segcal.fitting.newton import Curvature, box_step, minimise, projected_gradient


def random_problem(size, rank, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, rank))
    low, high = -rng.random(size) * 2, rng.random(size) * 2
    low[rng.random(size) < 0.2] = 0.0
    return root @ root.T, rng.normal(size=size) * 3, low, high


def by_faces(H, g, low, high):
    """The exact minimum of the quadratic in a box: try every assignment of components to low, high or free."""
    best = np.inf
    for assignment in itertools.product((-1, 0, 1), repeat=len(g)):
        state = np.array(assignment)
        x = np.where(state < 0, low, np.where(state > 0, high, 0.0))
        free = state == 0
        if free.any():
            right = -(g + H @ np.where(free, 0.0, x))[free]
            x[free] = np.linalg.lstsq(H[np.ix_(free, free)], right, rcond=None)[0]
        if (x >= low - 1e-9).all() and (x <= high + 1e-9).all():
            best = min(best, g @ x + 0.5 * x @ H @ x)
    return best


def value_of(x, H, g):
    return float(g @ x + 0.5 * x @ H @ x)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5), deficit=st.integers(0, 3))
def test_the_step_minimises_the_quadratic_in_the_box_also_where_it_is_singular(seed, size, deficit):
    H, g, low, high = random_problem(size, max(1, size - deficit), seed)
    x = box_step(torch.as_tensor(g), Curvature(torch.as_tensor(H)), *map(torch.as_tensor, (low, high))).numpy()
    assert (x >= low).all()
    assert (x <= high).all()
    scale = 1 + np.abs(g).sum()
    assert value_of(x, H, g) <= by_faces(H, g, low, high) + 2e-3 * scale


def test_every_block_reaches_the_minimum_that_scipy_finds(smooth, by_scipy):
    problem = smooth(4, 6)
    solution = minimise(problem, torch.zeros(4, 6, dtype=torch.float64), [0, 1, 2, 3], 1e-9)
    assert solution.converged
    assert float(solution.residuals.max()) <= 1e-9
    assert bool((solution.theta == problem.low).any() | (solution.theta == problem.high).any())
    for block in range(4):
        peer = by_scipy(problem, block, 6)
        assert float(solution.values[block]) == pytest.approx(peer.fun, abs=1e-9)
        np.testing.assert_allclose(solution.theta[block], peer.x, atol=1e-5)


@pytest.mark.parametrize("method", [minimise, trust_region.minimise])
def test_only_the_blocks_asked_for_move_and_finished_ones_cost_nothing(method, smooth):
    problem = smooth(3, 5)
    start = torch.full((3, 5), 0.1, dtype=torch.float64)
    solution = method(problem, start, [0, 2], 1e-9)
    assert torch.equal(solution.theta[1], start[1])
    assert all(1 not in asked for asked in problem.asked)
    assert solution.evaluations == len(problem.asked)


def test_a_hessian_that_serves_badly_is_refined(smooth):
    problem = smooth(1, 6, hessian_factor=0.01)  # steps a hundred times too long
    assert minimise(problem, torch.zeros(1, 6, dtype=torch.float64), [0], 1e-9).converged
    assert problem.refined == 1


def test_the_projected_gradient_leaves_out_what_pushes_against_a_bound():
    low, high = torch.zeros(4), torch.ones(4)
    theta, gradient = torch.tensor([0.0, 0.0, 1.0, 0.5]), torch.tensor([2.0, -2.0, -3.0, 4.0])
    assert projected_gradient(theta, gradient, low, high).tolist() == [0.0, -2.0, 0.0, 4.0]


def test_the_reported_residual_is_that_of_the_returned_point(smooth, monkeypatch):
    """Also when the iterations run out in the middle of the way."""
    monkeypatch.setattr("segcal.fitting.newton.MAX_ITERATIONS", 1)
    problem = smooth(2, 6)
    solution = minimise(problem, torch.zeros(2, 6, dtype=torch.float64), [0, 1], 1e-12)
    _, gradients = problem.evaluate(solution.theta, [0, 1])
    expected = projected_gradient(solution.theta, gradients, problem.low, problem.high).abs().amax(1)
    torch.testing.assert_close(solution.residuals, expected)
    assert not solution.converged


def positive(size, rank, seed=0):
    root = np.random.default_rng(seed).normal(size=(size, rank))
    return torch.as_tensor(root @ root.T)


def test_damping_is_small_beside_every_entry_of_the_diagonal():
    """Features of 1e4 and a bias differ by 1e8 in curvature; the bias must still be solved for exactly."""
    matrix = torch.diag(torch.tensor([1e9, 1e-4], dtype=torch.float64))
    found = Curvature(matrix).solve(torch.tensor([1e9, 1e-4], dtype=torch.float64), torch.ones(2, dtype=torch.bool))
    assert found.tolist() == pytest.approx([1.0, 1.0], rel=1e-6)


def test_a_matrix_that_rounding_made_indefinite_is_damped_until_it_is_not():
    matrix = positive(5, 2) - 1e-9 * torch.eye(5, dtype=torch.float64)
    found = Curvature(matrix).solve(torch.ones(5, dtype=torch.float64), torch.ones(5, dtype=torch.bool))
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("factor", [1.0, 0.02, 30.0])
def test_every_block_reaches_the_minimum_that_scipy_finds_even_with_a_bad_hessian(smooth, by_scipy, factor):
    problem = smooth(4, 6, factor)
    solution = trust_region.minimise(problem, torch.full((4, 6), 0.2, dtype=torch.float64), [0, 1, 2, 3], 1e-9)
    assert solution.converged
    assert float(solution.residuals.max()) <= 1e-9
    assert bool((solution.theta == problem.low).any() | (solution.theta == problem.high).any())
    for block in range(4):
        peer = by_scipy(problem, block, 6)
        assert float(solution.values[block]) == pytest.approx(peer.fun, abs=1e-9)
        np.testing.assert_allclose(solution.theta[block], peer.x, atol=1e-5)


def test_a_hessian_that_serves_badly_is_refined_and_its_preconditioner_made_anew(smooth):
    problem = smooth(1, 6, 0.02)
    trust_region.minimise(problem, torch.zeros(1, 6, dtype=torch.float64), [0], 1e-9)
    assert problem.factor == 1.0
    assert problem.fresh[0]
    assert any(problem.fresh[1:])


def test_150_classes_reach_the_tolerance_and_the_residual_is_true():
    rng = np.random.default_rng(1)
    classes, voxels = 150, 1500
    labels = rng.integers(0, classes, voxels)
    logits = rng.normal(size=(classes, voxels)).astype(np.float32)
    logits[labels, np.arange(voxels)] += 3
    fitted = fit(
        "dc", ArrayCases(logits=[logits], labels=[labels]), config=FitConfig(lam=30.0, mu=1.0, voxels=voxels, tol=1e-5)
    )
    assert fitted.certificate.converged
    weight = fitted.calibrator.weight.detach().clone().requires_grad_()
    bias = fitted.calibrator.bias.detach().clone().requires_grad_()
    x = torch.log_softmax(torch.from_numpy(logits).double(), 0).to(torch.float32).double()
    nll = torch.nn.functional.cross_entropy((weight @ x + bias[:, None]).T, torch.from_numpy(labels))
    off = weight - torch.diag(weight.diagonal())
    objective = nll + 30 * off.square().sum() / (classes * (classes - 1)) + bias.square().sum() / classes
    objective.backward()
    assert objective.item() == pytest.approx(fitted.certificate.objective, abs=1e-9)
    inside = (weight > 1e-3).detach() | (off.detach() != 0)
    found = max(float((weight.grad * inside).abs().max()), float(bias.grad.abs().max()))
    assert found <= 1.01e-5
    assert found == pytest.approx(fitted.certificate.kkt_residual, rel=0.05)
