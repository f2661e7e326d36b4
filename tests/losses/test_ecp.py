import math

import pytest
import torch

from segcal.losses import ConfidencePenalty, CrossEntropy


def by_hand(plain, logits, labels, weight):
    terms = []
    for _, _, z, label in plain.voxels(logits, labels):
        shares = plain.softmax(z)
        entropy = -sum(share * math.log(share) for share in shares) / len(shares)
        terms.append(-math.log(shares[label]) - weight * entropy)
    return terms


def test_the_worked_value_takes_the_mean_over_classes(worked):
    assert float(ConfidencePenalty()(*worked)) == pytest.approx(5.5042981, abs=5e-8)


def test_the_papers_sum_over_classes_is_so_many_times_the_weight(worked):
    assert float(ConfidencePenalty(weight=0.1 * 4)(*worked)) == pytest.approx(5.5016266, abs=5e-8)


def test_it_is_the_plain_loop(plain, batch):
    terms = by_hand(plain, *batch, 0.3)
    assert float(ConfidencePenalty(weight=0.3)(*batch)) == pytest.approx(sum(terms) / len(terms), rel=1e-12)
    assert float(ConfidencePenalty(weight=0.3, reduction="sum")(*batch)) == pytest.approx(sum(terms), rel=1e-12)


def test_a_probability_of_zero_has_no_entropy_and_a_finite_gradient():
    logits = torch.tensor([[500.0, -500.0]], requires_grad=True)
    value = ConfidencePenalty(weight=1.0)(logits, torch.tensor([0]))
    value.backward()
    assert value == 0
    assert torch.isfinite(logits.grad).all()


def test_weight_zero_is_the_cross_entropy(batch):
    torch.testing.assert_close(ConfidencePenalty(weight=0)(*batch), CrossEntropy()(*batch), rtol=0, atol=0)
