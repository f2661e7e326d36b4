import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropyDice
from segcal.types import IGNORED


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(0, 3, (2, 5, 4), generator=generator)
    return torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64), labels


def reference(logits, labels):
    """Cross-entropy and soft Dice from their definitions, on whole arrays without ignored voxels."""
    probs = logits.exp() / logits.exp().sum(1, keepdim=True)
    truth = torch.stack([labels == number for number in range(logits.shape[1])], 1).double()
    entropy = -(truth * probs.log()).sum(1).mean()
    overlap, sizes = (truth * probs).sum((2, 3)), truth.sum((2, 3)) + probs.sum((2, 3))
    return entropy, (1 - (2 * overlap + 1e-5) / (sizes + 1e-5)).mean()


def test_it_is_the_sum_of_both(batch):
    entropy, overlap = reference(*batch)
    torch.testing.assert_close(CrossEntropyDice()(*batch), entropy + overlap)


def test_both_parts_have_a_factor(batch):
    entropy, overlap = reference(*batch)
    loss = CrossEntropyDice(ce_weight=0.25, dice_weight=3)
    torch.testing.assert_close(loss(*batch), 0.25 * entropy + 3 * overlap)


def test_it_is_monais_dice_ce(batch):
    losses = pytest.importorskip("monai.losses")
    logits, labels = batch
    expected = losses.DiceCELoss(softmax=True, to_onehot_y=True)(logits, labels[:, None])
    torch.testing.assert_close(CrossEntropyDice()(logits, labels), expected)


def test_ignoring_half_a_picture_is_cropping_it(batch):
    logits, labels = batch
    masked = labels.clone()
    masked[:, 3:] = IGNORED
    entropy, overlap = reference(logits[:, :, :3], labels[:, :3])
    torch.testing.assert_close(CrossEntropyDice()(logits, masked), entropy + overlap)


def test_factors_must_not_be_negative():
    with pytest.raises(InputError, match=r"dice_weight is -0\.5, but a number of at least 0 is needed"):
        CrossEntropyDice(dice_weight=-0.5)
