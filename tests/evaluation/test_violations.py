import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.cases import Case
from segcal.evaluation.audit import Measured, adversarial, measure, rise_of, shift_change


@pytest.fixture
def flipping():
    """Class 2 gains 3, whatever the logits."""
    calibrator = make_calibrator("vs", 3)
    with torch.no_grad():
        calibrator.bias.copy_(torch.tensor([0.0, 0.0, 3.0]))
    return calibrator


def test_flips_and_the_largest_rise_are_those_of_a_plain_loop(flipping):
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7, 8)) * 2).float()
    found = measure(flipping, Case("a", logits))
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
    found = measure(make_calibrator("cms_op", 3), Case("a", logits))
    assert (found.flips, found.rise) == (0, 0.0)
    assert found.change < 1e-9


def test_a_case_of_several_steps_is_counted_whole(flipping, monkeypatch):
    logits = torch.zeros(3, 90, 11)
    logits[1, 40:] = 9
    monkeypatch.setattr("segcal.evaluation.audit.STEP_VALUES", 300)
    found = measure(flipping, Case("a", logits))
    assert (found.voxels, found.flips) == (990, 440)


def test_voxels_that_see_each_other_are_shifted_apart_and_in_slabs_as_in_one(randomise, monkeypatch):
    calibrator = randomise(make_calibrator("lts_ti", 3))
    case = Case("a", 3 * torch.randn(3, 40, 17, generator=torch.Generator().manual_seed(0)))
    whole = measure(calibrator, case)
    monkeypatch.setattr("segcal.evaluation.audit.STEP_VALUES", 300)
    assert (whole.voxels, whole.flips, whole.rise) == (680, 0, 0.0)
    assert whole.change < 1e-6
    assert measure(calibrator, case).voxels == 680
    dependent = randomise(make_calibrator("lts", 3))
    assert measure(dependent, case).change > 1e-3


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
