import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropyDice, make_loss
from segcal.types import IGNORED

NAMES = ["ml1_ace", "ml1_ace_soft"]


def by_hand(plain, logits, labels, bins, soft):
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
    rows = by_hand(plain, *batch, bins, name.endswith("soft"))
    alone = make_loss(name, bins=bins, weight=2.0)(*batch) - CrossEntropyDice()(*batch)
    assert float(alone) == pytest.approx(2 * sum(rows) / len(rows), abs=1e-10)
    total = make_loss(name, bins=bins, reduction="sum")(*batch) - CrossEntropyDice(reduction="sum")(*batch)
    assert float(total) == pytest.approx(sum(rows), abs=1e-10)
    inner = make_loss(name, bins=bins, include_background=False, dice_weight=0)(*batch) - make_loss("ce")(*batch)
    kept = [row for number, row in enumerate(rows) if number % 4]
    assert float(inner) == pytest.approx(sum(kept) / len(kept), abs=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_confidence_in_random_labels_costs(name, batch):
    logits, labels = batch
    sure, unsure = (make_loss(name)(z, labels) - CrossEntropyDice()(z, labels) for z in (logits, 0.1 * logits))
    assert sure > unsure + 0.1


@pytest.mark.parametrize("name", NAMES)
def test_an_image_that_is_void_is_left_out_of_the_mean(name, batch):
    logits, labels = batch
    void = torch.cat([labels, torch.full_like(labels[:1], IGNORED)])
    longer = torch.cat([logits, logits[:1]])
    torch.testing.assert_close(make_loss(name)(longer, void), make_loss(name)(logits, labels), rtol=1e-12, atol=0)


def test_bins_that_are_none_are_refused():
    with pytest.raises(InputError, match=r"bins is 1, but a whole number of at least 2 is needed. The paper uses 20."):
        make_loss("ml1_ace", bins=1)
