import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropy, MarginLabelSmoothing


def by_hand(plain, logits, labels, margin, weight, power):
    terms = []
    for _, _, z, label in plain.voxels(logits, labels):
        excess = [max(max(z) - value - margin, 0.0) ** power for value in z]
        terms.append(-math.log(plain.softmax(z)[label]) + weight * sum(excess) / len(z))
    return terms


def test_the_worked_values(worked):
    entropy = float(CrossEntropy()(*worked))
    assert float(MarginLabelSmoothing()(*worked)) == pytest.approx(5.6551886, abs=5e-8)
    assert float(MarginLabelSmoothing(weight=1.0)(*worked)) - entropy == pytest.approx(1.5, abs=1e-12)
    assert float(MarginLabelSmoothing(margin=10, weight=1.0)(*worked)) == pytest.approx(entropy, abs=1e-12)


def test_the_quadratic_penalty_is_the_intended_one(worked):
    entropy = float(CrossEntropy()(*worked))
    penalty = float(MarginLabelSmoothing(weight=1.0, penalty="l2")(*worked)) - entropy
    assert penalty == pytest.approx(4.125, abs=1e-12)
    assert penalty != pytest.approx(10.375)  # the published code, which squares before it cuts


@pytest.mark.parametrize(("penalty", "power"), [("l1", 1), ("l2", 2)])
def test_it_is_the_plain_loop(plain, batch, penalty, power):
    terms = by_hand(plain, *batch, 3.0, 0.2, power)
    loss = MarginLabelSmoothing(margin=3.0, weight=0.2, penalty=penalty)
    assert float(loss(*batch)) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_class_weights_leave_the_penalty_alone(batch):
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0])
    weighted = MarginLabelSmoothing(class_weights=weights)(*batch) - CrossEntropy(class_weights=weights)(*batch)
    torch.testing.assert_close(weighted, MarginLabelSmoothing()(*batch) - CrossEntropy()(*batch), rtol=1e-10, atol=0)


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="margin is -2, but a number of at least 0 is needed"):
        MarginLabelSmoothing(margin=-2)
    with pytest.raises(InputError, match="penalty is 'L1', but l1 or l2 is needed"):
        MarginLabelSmoothing(penalty="L1")
