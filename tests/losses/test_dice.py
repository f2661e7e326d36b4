import math

import pytest
import torch

from segcal.losses import Dice
from segcal.types import IGNORED


def by_hand(logits, labels, smooth=1e-5):
    """Plain Python over (batch, classes, voxels): one term an image and class."""
    rows = []
    for image, truth in zip(logits.tolist(), labels.tolist(), strict=True):
        kept = [voxel for voxel, label in enumerate(truth) if label != IGNORED]
        row = []
        for number in range(len(image)):
            overlap = predicted = 0.0
            for voxel in kept:
                odds = [math.exp(channel[voxel]) for channel in image]
                share = odds[number] / sum(odds)
                predicted += share
                overlap += share * (truth[voxel] == number)
            size = sum(truth[voxel] == number for voxel in kept)
            row.append(1 - (2 * overlap + smooth) / (predicted + size + smooth))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(-1, 4, (3, 13), generator=generator)
    labels[1][labels[1] == 2] = 0  # a class that one image does not have
    return torch.randn(3, 4, 13, generator=generator, dtype=torch.float64) * 2, labels


def test_it_is_the_mean_over_images_and_classes(batch):
    terms = by_hand(*batch)
    torch.testing.assert_close(Dice(reduction="none")(*batch), terms, rtol=1e-12, atol=1e-14)
    assert float(Dice()(*batch)) == pytest.approx(float(terms.mean()), rel=1e-12)
    assert float(Dice(reduction="sum")(*batch)) == pytest.approx(float(terms.sum()), rel=1e-12)


def test_the_background_can_be_left_out(batch):
    expected = float(by_hand(*batch)[:, 1:].mean())
    assert float(Dice(include_background=False)(*batch)) == pytest.approx(expected, rel=1e-12)


def test_a_batch_can_be_one_large_image(batch):
    logits, labels = batch
    joined = by_hand(logits.movedim(0, 1).reshape(1, 4, -1), labels.reshape(1, -1))
    torch.testing.assert_close(Dice(batch=True, reduction="none")(logits, labels), joined, rtol=1e-12, atol=1e-14)


def test_an_image_that_is_void_is_left_out_of_the_mean(batch):
    logits, labels = batch
    labels = labels.clone()
    labels[1] = IGNORED
    expected = float(by_hand(logits, labels)[[0, 2]].mean())
    assert float(Dice()(logits, labels)) == pytest.approx(expected, rel=1e-12)


def test_weights_multiply_the_terms_of_their_class(batch):
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0])
    expected = float((by_hand(*batch) * weight).mean())
    assert float(Dice(class_weights=weight)(*batch)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("space", [(6, 5), (4, 3, 5)])
@pytest.mark.parametrize("batched", [False, True])
def test_without_ignored_voxels_it_is_monais(space, batched):
    losses = pytest.importorskip("monai.losses")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, *space, generator=generator)
    labels = torch.randint(0, 3, (2, *space), generator=generator)
    expected = losses.DiceLoss(softmax=True, to_onehot_y=True, batch=batched)(logits, labels[:, None])
    torch.testing.assert_close(Dice(batch=batched)(logits, labels), expected)
