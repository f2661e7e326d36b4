"""The likelihood of a mixture, against automatic differentiation of its definition."""

import numpy as np
import pytest
import torch

from segcal.kernels.mixture_numba import mixture_terms


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.5])
def test_value_gradient_and_hessian_are_those_of_the_definition(beta):
    rng = np.random.default_rng(0)
    count, classes = 20_011, 3  # two parts, and a tile that is not full
    logits = torch.from_numpy(4 * rng.normal(size=(classes, count)) + 1e3)
    labels, weight = torch.from_numpy(rng.integers(classes, size=count)), torch.from_numpy(rng.random(count))
    theta = torch.tensor([beta, 0.5, 0.3, 0.4], dtype=torch.float64)

    def objective(values):
        parts = [torch.softmax(scale * logits, 0)[labels, torch.arange(count)] for scale in (values[0], 1.0)]
        return -(weight * (values[1] * parts[0] + values[2] * parts[1] + values[3] / classes).log()).sum()

    value, gradient, hessian = mixture_terms(logits, labels, weight, theta)
    assert value == pytest.approx(float(objective(theta)), rel=1e-12)
    wanted = torch.autograd.functional.jacobian(objective, theta)
    assert torch.allclose(gradient, wanted, rtol=1e-10, atol=1e-9)
    assert torch.allclose(hessian, torch.autograd.functional.hessian(objective, theta), rtol=1e-9, atol=1e-7)


def test_a_label_that_cannot_be_makes_it_infinite():
    logits, theta = torch.tensor([[0.0], [-2000.0]], dtype=torch.float64), torch.tensor([1.0, 1, 0, 0]).double()
    assert mixture_terms(logits, torch.tensor([1]), torch.ones(1).double(), theta)[0] == np.inf
