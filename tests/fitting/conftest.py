import numpy as np
import pytest
import scipy.optimize
import torch

from segcal import ArrayCases
from segcal.fitting.newton import BlockProblem, Curvature, Products


def draw_data(classes, count, seed=0, scale=3.0, dtype="float64"):
    """Logits (classes, count) and labels that follow another affine map of them, so that every calibrator has work."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(classes, count))
    truth = 0.4 * np.eye(classes) + 0.08 * rng.normal(size=(classes, classes))
    labels = (truth @ logits + 0.3 * rng.normal(size=(classes, 1)) + rng.gumbel(size=logits.shape)).argmax(0)
    return logits.astype(dtype), labels


@pytest.fixture
def make_data():
    return draw_data


@pytest.fixture
def make_cases():
    """Cases of such data, cut into `parts` cases of different shapes."""

    def make(classes, count, seed=0, parts=1, **options):
        logits, labels = draw_data(classes, count, seed, **options)
        cuts = np.array_split(np.arange(count), parts)
        return ArrayCases(logits=[logits[:, cut] for cut in cuts], labels=[labels[cut] for cut in cuts])

    return make


class SmoothProblem(BlockProblem):
    """Independent problems log-sum-exp(A x) + quadratic; their Hessian, exact or bad, as a matrix and as products."""

    def __init__(self, blocks, size, hessian_factor=1.0):
        rng = np.random.default_rng(0)
        self.A = torch.as_tensor(rng.normal(size=(blocks, 15, size)))
        self.centre = torch.as_tensor(rng.normal(size=(blocks, size)))
        self.low = torch.full((size,), -0.5, dtype=torch.float64)
        self.high = torch.full((size,), 0.7, dtype=torch.float64)
        self.factor, self.refined, self.asked, self.fresh = hessian_factor, 0, [], []

    def value(self, x, block):
        return torch.logsumexp(self.A[block] @ x, 0) + 0.05 * (x - self.centre[block]).square().sum()

    def evaluate(self, theta, blocks):
        self.asked.append(list(blocks))
        values, gradients = torch.full((len(theta),), torch.nan, dtype=torch.float64), torch.full_like(theta, torch.nan)
        for block in blocks:
            x = theta[block].clone().requires_grad_()
            value = self.value(x, block)
            values[block], gradients[block] = value.detach(), torch.autograd.grad(value, x)[0]
        return values, gradients

    def _hessian(self, block, theta):
        return self.factor * torch.autograd.functional.hessian(lambda x: self.value(x, block), theta)

    def curvature(self, block, theta):
        return Curvature(self._hessian(block, theta))

    def products(self, block, theta, fresh):
        self.fresh.append(fresh)
        matrix = self._hessian(block, theta)
        return Products(lambda v: matrix @ v, lambda v: v / matrix.diagonal())

    def refine(self, block):
        if self.factor == 1.0:
            return False
        self.refined += 1
        self.factor = 1.0
        return True


@pytest.fixture
def smooth():
    return SmoothProblem


@pytest.fixture
def by_scipy():
    """The minimum of one block as scipy finds it."""

    def find(problem, block, size):
        def both(x):
            x = torch.tensor(x, requires_grad=True)
            value = problem.value(x, block)
            return value.item(), torch.autograd.grad(value, x)[0].numpy()

        bounds = list(zip(problem.low.tolist(), problem.high.tolist(), strict=True))
        options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000}
        start = np.zeros(size)
        return scipy.optimize.minimize(both, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)

    return find
