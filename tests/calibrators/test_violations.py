import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.violations import STEP, Measured, adversarial, rise_of, shift_change


@pytest.fixture
def flipping():
    """Class 2 gains 3, whatever the logits."""
    calibrator = make_calibrator("vs", 3)
    with torch.no_grad():
        calibrator.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    return calibrator


def test_flips_and_the_largest_rise_are_those_of_a_plain_loop(flipping):
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7, 8)) * 2).float()
    found = Measured.of(flipping, logits)
    flips, rise = 0, 0.0
    for voxel in logits.reshape(3, -1).T.double().numpy():
        after = voxel + np.array([0, 0, 3.0])
        above = after.max() - after[voxel.argmax()]
        flips += above > 0
        rise = max(rise, above)
    assert (found.voxels, found.flips) == (56, flips)
    assert found.rise == pytest.approx(rise)


def test_one_that_keeps_everything_has_no_violation():
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 7, 8)) * 2)
    found = Measured.of(make_calibrator("cms_op", 3), logits)
    assert (found.flips, found.rise) == (0, 0.0)
    assert found.change < 1e-9
    assert found.change_or_none() == found.change
    assert Measured().change_or_none() is None


def test_a_case_of_several_steps_is_counted_whole(flipping):
    logits = torch.zeros(3, STEP + 10)
    found = Measured.of(flipping, logits)
    assert found.voxels == found.flips == STEP + 10


def test_what_was_measured_on_two_cases_adds_up():
    total = Measured(3, 1, 0.5, 0.1).with_others(Measured(4, 0, 0.2, 0.3))
    assert total == Measured(7, 1, 0.5, 0.3)


def test_a_shift_changes_what_depends_on_the_offset():
    scaled = make_calibrator("vs", 3)
    with torch.no_grad():
        scaled.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    logits = adversarial(3)[:500]
    change, example = shift_change(scaled, logits)
    assert change > 100
    before, after = np.array(example["logits"]), np.array(example["logits"]) + example["the same plus"]
    for given, told in ((before, example["probabilities"]), (after, example["and after the shift"])):
        scores = given * np.array([1.0, 2.0, 3.0])
        expected = np.exp(scores - scores.max())
        np.testing.assert_allclose(told, expected / expected.sum(), atol=1e-4)
    assert shift_change(make_calibrator("ts", 3), logits)[0] < 1e-9


def test_the_example_of_a_rise_is_a_voxel_that_changes_its_class(flipping):
    rise, example = rise_of(flipping, adversarial(3), "argmax")
    assert rise == pytest.approx(3.0, abs=1e-6)
    assert example["class before"] != example["class after"] == 2
    assert int(np.argmax(example["logits"])) == example["class before"]


def test_adversarial_voxels_have_leaders_that_almost_tie():
    voxels = adversarial(4)
    leaders = voxels.topk(2, dim=1).values
    near = (leaders[:, 0] - leaders[:, 1]) < 2e-9
    assert near.double().mean() > 0.3
    assert torch.equal(voxels, adversarial(4))
