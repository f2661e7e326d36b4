import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import LabelSmoothing


def by_hand(plain, logits, labels, smoothing, weights=(1.0,) * 4):
    total = count = 0.0
    for _, _, z, label in plain.voxels(logits, labels):
        shares = plain.softmax(z)
        for number, share in enumerate(shares):
            target = smoothing / len(shares) + (1 - smoothing) * (number == label)
            total -= weights[number] * target * math.log(share)
        count += weights[label]
    return total, count


def test_the_worked_value(worked):
    assert float(LabelSmoothing()(*worked)) == pytest.approx(5.4801886, abs=5e-8)


def test_it_is_the_plain_loop(plain, batch):
    total, count = by_hand(plain, *batch, 0.3)
    assert float(LabelSmoothing(smoothing=0.3)(*batch)) == pytest.approx(total / count, rel=1e-12)
    assert float(LabelSmoothing(smoothing=0.3, reduction="sum")(*batch)) == pytest.approx(total, rel=1e-12)


def test_class_weights_are_torchs(plain, batch):
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    total, count = by_hand(plain, *batch, 0.1, weights.tolist())
    value = LabelSmoothing(class_weights=weights)(*batch)
    assert float(value) == pytest.approx(total / count, rel=1e-12)
    expected = torch.nn.CrossEntropyLoss(weights, label_smoothing=0.1, ignore_index=-1)(*batch)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("smoothing", [-0.1, 1.5, float("nan")])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(InputError, match=r"smoothing is .*, but a share from 0 to 1 is needed"):
        LabelSmoothing(smoothing=smoothing)
