"""Ensemble temperature scaling against plain scipy and the EM recursion."""

import numpy as np
import pytest
import scipy.optimize
import torch

from segcal import ArrayCases, FitConfig, fit
from segcal.fitting.mixture import MixtureProblem
from segcal.fitting.newton import minimise
from segcal.fitting.voxels import StreamedVoxels


def softmax(z):
    e = np.exp(z - z.max(0))
    return e / e.sum(0)


def data(seed=3, classes=4, count=2000, uniform=0.2, sharpness=0.6):
    """Labels from a mixture: tempered with most of the weight, and some at random."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(classes, count))
    labels = (sharpness * z + rng.gumbel(size=z.shape)).argmax(0)
    noise = rng.random(count) < uniform
    labels[noise] = rng.integers(0, classes, noise.sum())
    return z, labels


def parts_of(z, labels, beta):
    """Probability of the label under the three terms, (3, n)."""
    index = np.arange(len(labels))
    return np.stack([softmax(beta * z)[labels, index], softmax(z)[labels, index], np.full(len(labels), 1 / len(z))])


def nll(weights, parts):
    return -np.log(weights @ parts).mean()


def weights_by_em(parts, rounds=20_000):
    w = np.full(3, 1 / 3)
    for _ in range(rounds):
        share = w[:, None] * parts
        w = (share / share.sum(0)).mean(1)
    return w


def weights_by_slsqp(parts):
    constraint = {"type": "eq", "fun": lambda w: w.sum() - 1}
    start, bounds = np.full(3, 1 / 3), [(0, 1)] * 3
    return scipy.optimize.minimize(nll, start, (parts,), "SLSQP", bounds=bounds, constraints=constraint, tol=1e-14).x


def cases_of(z, labels):
    return ArrayCases(logits=[z], labels=[labels])


@pytest.mark.parametrize("beta", [0.3, 2.0])
def test_weights_at_a_fixed_temperature_are_those_of_em_and_slsqp(beta):
    z, labels = data()
    problem = MixtureProblem(StreamedVoxels(cases_of(z, labels), lambda: None), torch.device("cpu"))
    problem.fix_temperature(beta)
    solution = minimise(problem, torch.tensor([[beta, 0.9, 0.05, 0.05]], dtype=torch.float64), [0], 1e-9)
    found = solution.theta[0, 1:].numpy()
    parts = parts_of(z, labels, beta)
    assert found.sum() == pytest.approx(1, abs=1e-7)
    np.testing.assert_allclose(found, weights_by_em(parts), atol=2e-6)
    np.testing.assert_allclose(found, weights_by_slsqp(parts), atol=2e-4)
    assert nll(found, parts) <= nll(weights_by_slsqp(parts), parts) + 1e-9


@pytest.mark.parametrize(("uniform", "sharpness"), [(0.0, 0.3), (0.6, 50.0), (0.5, 0.0)])
def test_the_fit_is_no_worse_than_a_fine_grid_of_temperatures(uniform, sharpness):
    z, labels = data(7, 3, 800, uniform, sharpness)
    fitted = fit("ets", cases_of(z, labels), config=FitConfig(tol=1e-8))
    best = min(
        nll(weights_by_slsqp(parts), parts) for parts in (parts_of(z, labels, b) for b in np.geomspace(1e-3, 1e3, 30))
    )
    assert fitted.certificate.objective <= best + 1e-6
    beta, w = fitted.calibrator.inverse_temperature.item(), fitted.calibrator.mixture.detach().numpy()
    assert w.sum() == pytest.approx(1, abs=1e-12)
    assert (w >= 0).all()
    assert nll(w, parts_of(z, labels, beta)) == pytest.approx(fitted.certificate.objective, abs=1e-9)


def test_gradient_and_hessian_are_those_of_the_objective():
    z, labels = data(count=200)
    problem = MixtureProblem(StreamedVoxels(cases_of(z, labels), lambda: None), torch.device("cpu"))
    theta = torch.tensor([[0.5, 0.6, 0.3, 0.2]], dtype=torch.float64)

    def objective(t):
        return nll(t[1:], parts_of(z, labels, t[0])) + t[1:].sum()

    value, gradient = problem.evaluate(theta, [0])
    hessian = problem._hessian.numpy().copy()
    point = theta[0].numpy()
    assert float(value) == pytest.approx(objective(point), rel=1e-12)
    np.testing.assert_allclose(gradient[0], scipy.optimize.approx_fprime(point, objective, 1e-7), atol=1e-5)
    for i in range(4):
        step = torch.zeros_like(theta)
        step[0, i] = 1e-6
        ends = [problem.evaluate(theta + s * step, [0])[1][0] for s in (1, -1)]
        np.testing.assert_allclose(hessian[i], (ends[0] - ends[1]).numpy() / 2e-6, atol=1e-6)


def test_the_certificate_gives_the_gradient_at_the_solution_and_says_that_it_is_not_convex():
    z, labels = data()
    certificate = fit("ets", cases_of(z, labels), validation=cases_of(*data(4))).certificate
    assert certificate.converged
    assert certificate.kkt_residual <= 1e-6
    assert certificate.details["convex"] is False
    z, labels = data(4)
    assert certificate.validation_nll < nll(np.array([0, 1, 0]), parts_of(z, labels, 1.0))


def test_it_is_never_worse_than_temperature_scaling():
    for seed in range(4):
        cases = cases_of(*data(seed, count=300, uniform=0.0, sharpness=0.5))
        both = [fit(name, cases).certificate.objective for name in ("ets", "ts")]
        assert both[0] <= both[1] + 1e-9
