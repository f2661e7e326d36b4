"""The map of a prior shift against Bayes' rule, and its promises with ratios that would break them."""

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators.prior_shift import PriorShift

RATIO = torch.tensor([3.0, -5.0, 0.5], dtype=torch.float64)


def shifted(inner, ratio=RATIO):
    found = PriorShift(inner.num_classes, inner)
    found.log_ratio.data = ratio
    return found.requires_grad_(False)


@pytest.fixture
def logits():
    return torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4


def test_where_the_winner_stays_it_is_bayes_rule(logits):
    found = shifted(segcal.make_calibrator("ts", 3))(logits).exp().numpy()
    weighed = np.exp(logits.numpy()) * np.exp(RATIO.numpy())[:, None, None]
    weighed /= weighed.sum(1, keepdims=True)
    stays = weighed.argmax(1) == logits.numpy().argmax(1)
    assert 10 < stays.sum() < stays.size
    same = np.broadcast_to(stays[:, None], found.shape)
    np.testing.assert_allclose(found[same], weighed[same], rtol=1e-9)


@pytest.mark.parametrize("inner", ["identity", "ts", "cms_ap", "conic_class"])
def test_the_mask_stays_and_the_offset_is_not_seen(logits, inner):
    calibrator = shifted(segcal.make_calibrator(inner, 3))
    assert calibrator.preserves == "argmax"
    for dtype in (torch.float16, torch.float32, torch.float64):
        own = logits.to(dtype)
        assert torch.equal(calibrator(own).argmax(1), own.argmax(1))
    torch.testing.assert_close(calibrator(logits + 100), calibrator(logits))


def test_a_calibrator_that_may_change_masks_is_weighed_as_it_is(logits):
    inner = segcal.make_calibrator("ms_c", 3)
    found = shifted(inner)(logits).exp().numpy()
    weighed = inner(logits).detach().exp().numpy() * np.exp(RATIO.numpy())[:, None, None]
    np.testing.assert_allclose(found, weighed / weighed.sum(1, keepdims=True), rtol=1e-9)


def test_without_a_change_it_is_the_inner_calibrator(logits):
    inner = segcal.make_calibrator("ts", 3)
    inner.inverse_temperature.data.fill_(0.4)
    torch.testing.assert_close(PriorShift(3, inner)(logits), inner(logits))
