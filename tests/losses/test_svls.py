import math

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropy, SpatialLabelSmoothing
from segcal.losses.neighbours import gaussian_prior
from segcal.types import IGNORED


def by_hand(plain, logits, labels, size, sigma, weights=(1.0,) * 4):
    window = plain.svls_window(size, labels.ndim - 1, sigma)
    total = count = 0.0
    for number, place, z, label in plain.voxels(logits, labels):
        target = plain.proportions(labels[number].tolist(), place, len(z), window)
        total -= sum(w * t * math.log(p) for w, t, p in zip(weights, target, plain.softmax(z), strict=True))
        count += weights[label]
    return total, count


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.5), (3, 2.0)])
def test_it_is_the_plain_loop(plain, batch, size, sigma):
    total, count = by_hand(plain, *batch, size, sigma)
    loss = SpatialLabelSmoothing(sigma=sigma, kernel_size=size)
    assert float(loss(*batch)) == pytest.approx(total / count, rel=1e-12)


def test_it_is_the_plain_loop_with_a_wide_window(plain):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, 4, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 4, (1, 6, 5), generator=generator)
    total, count = by_hand(plain, logits, labels, 5, 1.5)
    assert float(SpatialLabelSmoothing(1.5, 5)(logits, labels)) == pytest.approx(total / count, rel=1e-12)


def test_class_weights_multiply_the_log_probabilities(plain, batch):
    weights = (0.5, 2.0, 0.0, 1.0)
    total, count = by_hand(plain, *batch, 3, 2.0, weights)
    loss = SpatialLabelSmoothing(class_weights=torch.tensor(weights))
    assert float(loss(*batch)) == pytest.approx(total / count, rel=1e-12)


def test_twice_the_loss_is_cross_entropy_plus_a_constraint_on_the_neighbours(batch):
    """Eq. 7 of the paper, with window weights that sum to one: 2 SVLS = CE + KL(tau || p) + H(tau)."""
    logits, labels = batch
    labels = torch.where(labels == IGNORED, 2, labels)
    own = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1)
    tau = 2 * torch.stack(list(gaussian_prior(labels, 4, 3, 2.0, torch.float64)), 1) - own
    assert float(tau.min()) > -1e-12
    tau = tau.clamp(min=0)
    log_probs = torch.log_softmax(logits, dim=1)
    divergence = torch.special.xlogy(tau, tau).sum(1) - (tau * log_probs).sum(1)
    entropy = -torch.special.xlogy(tau, tau).sum(1)
    expected = CrossEntropy()(logits, labels) + divergence.mean() + entropy.mean()
    torch.testing.assert_close(2 * SpatialLabelSmoothing()(logits, labels), expected, rtol=1e-12, atol=0)


def test_inside_a_region_it_is_the_cross_entropy(worked):
    torch.testing.assert_close(SpatialLabelSmoothing()(*worked), CrossEntropy()(*worked), rtol=1e-12, atol=0)


def test_without_reduction_there_is_a_value_a_voxel(batch):
    logits, labels = batch
    voxels = SpatialLabelSmoothing(reduction="none")(logits, labels)
    assert (voxels[labels == IGNORED] == 0).all()
    torch.testing.assert_close(SpatialLabelSmoothing()(logits, labels), voxels[labels != IGNORED].mean())
    torch.testing.assert_close(SpatialLabelSmoothing(reduction="sum")(logits, labels), voxels.sum())


def test_a_volume_of_identical_slices_has_more_neighbours_than_a_slice():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, 3, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (1, 6, 5), generator=generator)
    deep = SpatialLabelSmoothing()(logits[:, :, None].expand(-1, -1, 4, -1, -1), labels[:, None].expand(-1, 4, -1, -1))
    assert abs(float(deep - SpatialLabelSmoothing()(logits, labels))) > 1e-5


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="kernel_size is 4, but an odd whole number"):
        SpatialLabelSmoothing(kernel_size=4)
    with pytest.raises(InputError, match="sigma is 0, but a positive number of voxels"):
        SpatialLabelSmoothing(sigma=0)
