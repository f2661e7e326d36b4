"""Features about their centre: the same likelihood, gradients and Hessians in the same variables."""

import numpy as np
import pytest
import torch

from segcal import ArrayCases, FitConfig, fit
from segcal.calibrators.centre import find_centre, inward, outward, take_out

MEAN = torch.tensor([1e4, 0.0, -512.0], dtype=torch.float64)


def test_only_means_that_are_large_beside_the_spread_are_taken_out():
    x = torch.tensor([[100.0, 104.0], [-0.5, 3.0], [1.0, 20.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
    centre = find_centre(4.0, x @ weight, x.square() @ weight, torch.float32)
    assert centre.tolist() == [103.0, 0.0, 0.0]
    assert take_out(x.float(), centre).tolist() == [[-3.0, 1.0], [-0.5, 3.0], [1.0, 20.0]]
    assert find_centre(4.0, x[1:] @ weight, x[1:].square() @ weight, torch.float32) is None


def test_without_a_centre_nothing_moves():
    values = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for moved in (take_out(values, None), inward(values, None), outward(values, None)):
        assert moved is values


def test_scores_stay_and_gradients_come_back_by_the_chain_rule():
    generator = torch.Generator().manual_seed(0)
    x = MEAN[:, None] + torch.randn(3, 7, dtype=torch.float64, generator=generator)
    theta = torch.randn(2, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    scores = theta[:, :-1] @ x + theta[:, -1:]
    own = inward(theta.detach(), MEAN).requires_grad_()
    moved = own[:, :-1] @ take_out(x, MEAN) + own[:, -1:]
    torch.testing.assert_close(moved, scores, rtol=0, atol=1e-10)
    factor = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    (scores * factor).sum().backward()
    (moved * factor).sum().backward()
    torch.testing.assert_close(outward(own.grad, MEAN), theta.grad, rtol=1e-12, atol=1e-9)


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
