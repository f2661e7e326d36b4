import pytest
import torch

from segcal.errors import InputError
from segcal.losses import LOSSES, CrossEntropy, make_loss
from segcal.losses.penalised import PenalisedLoss
from segcal.types import IGNORED

MEMBERS = [name for name, kind in LOSSES.items() if isinstance(kind, type) and issubclass(kind, PenalisedLoss)]


def test_three_losses_are_penalised():
    assert MEMBERS == ["ecp", "mbls", "nacl"]


@pytest.mark.parametrize("name", MEMBERS)
def test_weight_is_the_factor_on_the_penalty(name, batch):
    entropy = CrossEntropy()(*batch)
    once, thrice = (make_loss(name, weight=weight)(*batch) - entropy for weight in (0.1, 0.3))
    assert float(once) != 0
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-10, atol=0)
    assert make_loss(name).weight == 0.1


@pytest.mark.parametrize("name", MEMBERS)
def test_the_mean_is_over_voxels_that_count(name, batch):
    logits, labels = batch
    voxels = make_loss(name, reduction="none")(logits, labels)
    assert voxels.shape == labels.shape
    assert (voxels[labels == IGNORED] == 0).all()
    torch.testing.assert_close(make_loss(name)(logits, labels), voxels[labels != IGNORED].mean())
    torch.testing.assert_close(make_loss(name, reduction="sum")(logits, labels), voxels.sum())


@pytest.mark.parametrize("name", MEMBERS)
def test_a_negative_weight_is_refused(name):
    with pytest.raises(InputError, match=r"weight is -0\.1, but a number of at least 0 is needed"):
        make_loss(name, weight=-0.1)


@pytest.mark.parametrize("name", ["mbls", "nacl"])
def test_penalties_have_two_names(name):
    assert make_loss(name, penalty="l2").penalty == "l2"
    with pytest.raises(InputError, match="penalty is 'l3', but l1 or l2 is needed"):
        make_loss(name, penalty="l3")
