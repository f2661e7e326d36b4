"""The trust-region method on problems whose answer scipy finds, and on calibrators that are too large for a matrix."""

import numpy as np
import pytest
import torch

from segcal.cases.arrays import ArrayCases
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import fit
from segcal.fitting.trust_region import minimise


@pytest.mark.parametrize("factor", [1.0, 0.02, 30.0])
def test_every_block_reaches_the_minimum_that_scipy_finds_even_with_a_bad_hessian(smooth, by_scipy, factor):
    problem = smooth(4, 6, factor)
    solution = minimise(problem, torch.full((4, 6), 0.2, dtype=torch.float64), [0, 1, 2, 3], 1e-9)
    assert solution.converged
    assert float(solution.residuals.max()) <= 1e-9
    assert bool((solution.theta == problem.low).any() | (solution.theta == problem.high).any())
    for block in range(4):
        peer = by_scipy(problem, block, 6)
        assert float(solution.values[block]) == pytest.approx(peer.fun, abs=1e-9)
        np.testing.assert_allclose(solution.theta[block], peer.x, atol=1e-5)


def test_a_hessian_that_serves_badly_is_refined_and_its_preconditioner_made_anew(smooth):
    problem = smooth(1, 6, 0.02)
    minimise(problem, torch.zeros(1, 6, dtype=torch.float64), [0], 1e-9)
    assert problem.factor == 1.0
    assert problem.fresh[0]
    assert any(problem.fresh[1:])


def test_only_the_blocks_asked_for_move_and_every_pass_is_counted(smooth):
    problem = smooth(3, 5)
    start = torch.full((3, 5), 0.1, dtype=torch.float64)
    solution = minimise(problem, start, [0, 2], 1e-9)
    assert torch.equal(solution.theta[1], start[1])
    assert all(1 not in asked for asked in problem.asked)
    assert solution.evaluations == len(problem.asked)


def test_nothing_to_minimise_is_done(smooth):
    assert minimise(smooth(2, 3), torch.zeros(2, 3, dtype=torch.float64), [], 1e-9).converged


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
