import math

import pytest
import torch

from segcal.losses import CrossEntropyDice, Dice, make_loss
from segcal.types import IGNORED


def dice_by_hand(logits, labels, smooth=1e-5):
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
def flat():
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(-1, 4, (3, 13), generator=generator)
    labels[1][labels[1] == 2] = 0  # a class that one image does not have
    return torch.randn(3, 4, 13, generator=generator, dtype=torch.float64) * 2, labels


def test_it_is_the_mean_over_images_and_classes(flat):
    logits, labels = flat
    terms, weight = dice_by_hand(*flat), torch.tensor([0.5, 2.0, 0.0, 1.0])
    torch.testing.assert_close(Dice(reduction="none")(*flat), terms, rtol=1e-12, atol=1e-14)
    assert float(Dice()(*flat)) == pytest.approx(float(terms.mean()), rel=1e-12)
    assert float(Dice(include_background=False)(*flat)) == pytest.approx(float(terms[:, 1:].mean()), rel=1e-12)
    assert float(Dice(class_weights=weight)(*flat)) == pytest.approx(float((terms * weight).mean()), rel=1e-12)
    joined = dice_by_hand(logits.movedim(0, 1).reshape(1, 4, -1), labels.reshape(1, -1))
    torch.testing.assert_close(Dice(batch=True, reduction="none")(*flat), joined, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("space", [(6, 5), (4, 3, 5)])
@pytest.mark.parametrize("batched", [False, True])
def test_without_ignored_voxels_it_is_monais(space, batched):
    losses = pytest.importorskip("monai.losses")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, *space, generator=generator)
    labels = torch.randint(0, 3, (2, *space), generator=generator)
    expected = losses.DiceLoss(softmax=True, to_onehot_y=True, batch=batched)(logits, labels[:, None])
    torch.testing.assert_close(Dice(batch=batched)(logits, labels), expected)


@pytest.fixture
def pair():
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


def test_it_is_the_sum_of_both_and_ignoring_half_a_picture_is_cropping_it(pair):
    logits, labels = pair
    entropy, overlap = reference(logits, labels)
    loss = CrossEntropyDice(ce_weight=0.25, dice_weight=3)
    torch.testing.assert_close(loss(logits, labels), 0.25 * entropy + 3 * overlap)
    masked = labels.clone()
    masked[:, 3:] = IGNORED
    entropy, overlap = reference(logits[:, :, :3], labels[:, :3])
    torch.testing.assert_close(CrossEntropyDice()(logits, masked), entropy + overlap)


NAMES = ["ml1_ace", "ml1_ace_soft"]


def ace_by_hand(plain, logits, labels, bins, soft):
    """Plain Python: one calibration error per image and class."""
    shape = (len(logits), logits.shape[1], bins)
    weight, gap = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for number, _, z, label in plain.voxels(logits, labels):
        for c, p in enumerate(plain.softmax(z)):
            if soft:
                place = min(max(p * bins - 0.5, 0.0), bins - 1.0)
                low = min(int(place), bins - 2)
                shares = {low: 1 - (place - low), low + 1: place - low}
            else:
                shares = {min(max(math.ceil(p * bins) - 1, 0), bins - 1): 1.0}
            for m, share in shares.items():
                weight[number, c, m] += share
                gap[number, c, m] += share * (p - (label == c))
    rows = []
    for b in range(len(logits)):
        for c in range(logits.shape[1]):
            used = [abs(float(g / w)) for g, w in zip(gap[b, c], weight[b, c], strict=True) if w >= 0.01]
            rows.append(sum(used) / len(used))
    return rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bins", [2, 20])
def test_the_calibration_error_is_that_of_a_loop(name, bins, batch, plain):
    rows = ace_by_hand(plain, *batch, bins, name.endswith("soft"))
    alone = make_loss(name, bins=bins, weight=2.0)(*batch) - CrossEntropyDice()(*batch)
    assert float(alone) == pytest.approx(2 * sum(rows) / len(rows), abs=1e-10)
    total = make_loss(name, bins=bins, reduction="sum")(*batch) - CrossEntropyDice(reduction="sum")(*batch)
    assert float(total) == pytest.approx(sum(rows), abs=1e-10)
    inner = make_loss(name, bins=bins, include_background=False, dice_weight=0)(*batch) - make_loss("ce")(*batch)
    kept = [row for number, row in enumerate(rows) if number % 4]
    assert float(inner) == pytest.approx(sum(kept) / len(kept), abs=1e-10)


@pytest.mark.parametrize("name", ["dice", *NAMES])
def test_an_image_that_is_void_is_left_out_of_the_mean(name, batch):
    logits, labels = batch
    void = torch.cat([labels, torch.full_like(labels[:1], IGNORED)])
    longer = torch.cat([logits, logits[:1]])
    torch.testing.assert_close(make_loss(name)(longer, void), make_loss(name)(logits, labels), rtol=1e-12, atol=0)
