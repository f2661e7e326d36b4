import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.look_around import with_margin


def normal(*shape, seed=0):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def temperatures(calibrator, logits):
    """The temperature of every voxel, from the ratio of a gap before and after."""
    with torch.no_grad():
        scores = calibrator.scores(logits)
    return (logits[:, 0] - logits[:, 1]) / (scores[:, 0] - scores[:, 1])


@pytest.mark.parametrize("space", [(9, 8), (5, 9, 8)])
def test_every_image_has_one_temperature_of_its_own(space, randomise):
    calibrator = randomise(make_calibrator("ibts", 5))
    found = temperatures(calibrator, normal(4, 5, *space)).flatten(1)
    torch.testing.assert_close(found, found[:, :1].expand_as(found), rtol=1e-9, atol=0)
    assert float(found[:, 0].std()) > 1e-3


def test_the_others_in_the_batch_do_not_matter(randomise):
    calibrator = randomise(make_calibrator("ibts", 5))
    logits = normal(4, 5, 9, 8)
    torch.testing.assert_close(calibrator(logits)[2:3], calibrator(logits[2:3]), rtol=0, atol=1e-12)


def test_the_temperature_is_that_of_the_mean_of_the_tree(randomise):
    calibrator = randomise(make_calibrator("ibts", 3))
    logits = normal(1, 3, 7, 8)
    local = make_calibrator("lts_ti", 3)
    local.load_state_dict(calibrator.state_dict())
    per_voxel = temperatures(local, logits)
    c0, eps = 0.53974239, 1e-3
    mean = (torch.log(torch.expm1(per_voxel - eps)) - c0).mean()
    expected = eps + torch.log1p(torch.exp(mean + c0))
    torch.testing.assert_close(temperatures(calibrator, logits)[0, 0, 0], expected, rtol=1e-6, atol=0)


def test_weights_say_how_many_voxels_one_stands_for(randomise):
    """A voxel of weight 2 counts as two, one of weight 0 not at all."""
    calibrator = randomise(make_calibrator("ibts", 3))
    first, second = normal(1, 3, 6, 7), normal(1, 3, 6, 7, seed=1)
    slices = with_margin(torch.stack([first, second], dim=2), (0, 4, 4))
    alone = torch.tensor([1.0, 0.0]).reshape(1, 1, 2, 1, 1).expand(1, 1, 2, 6, 7).double()
    with torch.no_grad():
        found = calibrator.inner_scores(slices, weight=alone)[:, :, 0]
        torch.testing.assert_close(found, calibrator.scores(first), rtol=1e-9, atol=1e-9)
        twice = calibrator.inner_scores(slices, weight=alone + 1)[:, :, 0]
        three = with_margin(torch.stack([first, first, second], dim=2), (0, 4, 4))
        torch.testing.assert_close(twice, calibrator.inner_scores(three)[:, :, 0], rtol=1e-9, atol=1e-9)
