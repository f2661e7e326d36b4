import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropy, Focal


def by_hand(plain, logits, labels, gamma, weights=(1.0,) * 4):
    terms, total = [], 0.0
    for _, _, z, label in plain.voxels(logits, labels):
        share = plain.softmax(z)[label]
        terms.append(weights[label] * -((1 - share) ** gamma) * math.log(share))
        total += weights[label]
    return sum(terms), total


def test_the_worked_value(worked):
    assert float(Focal()(*worked)) == pytest.approx(5.4383152, abs=5e-8)


@pytest.mark.parametrize("gamma", [0.5, 1, 3])
def test_it_is_the_plain_loop(plain, batch, gamma):
    total, count = by_hand(plain, *batch, gamma)
    assert float(Focal(gamma=gamma)(*batch)) == pytest.approx(total / count, rel=1e-12)
    assert float(Focal(gamma=gamma, reduction="sum")(*batch)) == pytest.approx(total, rel=1e-12)


def test_class_weights_weigh_the_voxels_of_a_class(plain, batch):
    weights = (0.5, 2.0, 0.0, 1.0)
    total, count = by_hand(plain, *batch, 3, weights)
    loss = Focal(class_weights=torch.tensor(weights))
    assert float(loss(*batch)) == pytest.approx(total / count, rel=1e-12)


def test_gamma_zero_is_the_cross_entropy(batch):
    torch.testing.assert_close(Focal(gamma=0)(*batch), CrossEntropy()(*batch), rtol=1e-13, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_a_voxel_that_is_surely_right_has_no_gradient_and_no_nan(gamma):
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    Focal(gamma=gamma)(logits, torch.tensor([0])).backward()
    assert (logits.grad == 0).all()


def test_gamma_must_not_be_negative():
    with pytest.raises(InputError, match="gamma is -1, but a number of at least 0 is needed"):
        Focal(gamma=-1)
