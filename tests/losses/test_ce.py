import math

import pytest
import torch

from segcal.losses import CrossEntropy
from segcal.types import IGNORED


def by_hand(logits, labels, weight):
    """Plain Python over (batch, classes, voxels): the terms, and the weights they carry."""
    terms, weights = [], []
    for image, truth in zip(logits.tolist(), labels.tolist(), strict=True):
        for voxel, label in enumerate(truth):
            if label == IGNORED:
                continue
            z = [row[voxel] for row in image]
            top = max(z)
            log_sum = top + math.log(sum(math.exp(value - top) for value in z))
            terms.append(weight[label] * (log_sum - z[label]))
            weights.append(weight[label])
    return terms, weights


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(-1, 5, (3, 11), generator=generator)
    return torch.randn(3, 5, 11, generator=generator, dtype=torch.float64) * 4, labels


def test_the_worked_value():
    logits = torch.tensor([[2.0, -1.0, 0.5, 7.5]], dtype=torch.float64)
    assert float(CrossEntropy()(logits, torch.tensor([0]))) == pytest.approx(5.5051886, abs=5e-8)


def test_it_is_the_mean_over_voxels_that_count(batch):
    terms, _ = by_hand(*batch, [1.0] * 5)
    assert 0 < len(terms) < 33
    assert float(CrossEntropy()(*batch)) == pytest.approx(sum(terms) / len(terms), rel=1e-13)
    assert float(CrossEntropy(reduction="sum")(*batch)) == pytest.approx(sum(terms), rel=1e-13)


def test_a_weighted_mean_is_divided_by_the_weights(batch):
    weight = [0.5, 2.0, 0.0, 1.0, 3.0]
    terms, weights = by_hand(*batch, weight)
    loss = CrossEntropy(class_weights=torch.tensor(weight))
    assert float(loss(*batch)) == pytest.approx(sum(terms) / sum(weights), rel=1e-13)


def test_classes_of_weight_zero_alone_give_zero(batch):
    logits, labels = batch
    assert float(CrossEntropy(class_weights=torch.zeros(5))(logits, labels)) == 0


def test_without_reduction_ignored_voxels_are_zero(batch):
    logits, labels = batch
    losses = CrossEntropy(reduction="none")(logits, labels)
    assert losses.shape == labels.shape
    assert (losses[labels == IGNORED] == 0).all()
    assert (losses[labels != IGNORED] > 0).all()
