import numpy as np
import pytest
import torch

import segcal
from segcal.cases import Case
from segcal.evaluation.audit import adversarial, measure

PROMISES = {
    "identity": (True, "order"),
    "ts": (True, "order"),
    "ets": (True, "order"),
    "vs": (False, None),
    "vs_ti": (True, None),
    "ms": (False, None),
    "ms_c": (True, None),
    "dc": (True, None),
    "cdc": (True, None),
    "cms_ap": (True, "argmax"),
    "cms_op": (True, "order"),
}


def moved(name: str, num_classes: int = 3) -> segcal.Calibrator:
    """A calibrator away from the identity, within its bounds."""
    calibrator = segcal.make_calibrator(name, num_classes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter += 0.3 * torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    return calibrator


def findings(result):
    return {finding.promise: finding for finding in result.findings}


@pytest.mark.parametrize("name", PROMISES)
def test_promises_that_are_made_hold_and_the_others_are_shown_to_fail(name):
    offset, decision = PROMISES[name]
    result = segcal.audit(moved(name))
    found = findings(result)
    assert result.passed
    assert found["offset"].promised is offset
    assert found["offset"].holds is offset
    assert (found["decision"].promised or None) == decision
    assert found["decision"].holds is (decision is not None)


@pytest.mark.parametrize("name", ["vs", "ms"])
def test_the_example_of_offset_dependence_really_shows_it(name):
    calibrator = moved(name)
    example = findings(segcal.audit(calibrator))["offset"].example
    logits = torch.tensor([example["logits"]], dtype=torch.float64)
    shifted = logits + example["the same plus"]
    assert torch.allclose(torch.softmax(logits, 1), torch.softmax(shifted, 1), atol=1e-9)
    assert (calibrator(logits).exp() - calibrator(shifted).exp()).abs().max() > 0.05


@pytest.mark.parametrize("name", ["vs", "ms_c", "cdc"])
def test_the_example_of_a_flip_really_flips(name):
    calibrator = moved(name)
    example = findings(segcal.audit(calibrator))["decision"].example
    logits = torch.tensor([example["logits"]], dtype=torch.float64)
    assert int(logits.argmax()) == example["class before"]
    assert int(calibrator(logits).argmax()) == example["class after"] != example["class before"]


def test_matrix_scaling_with_equal_row_sums_is_found_independent_of_the_offset():
    calibrator = segcal.make_calibrator("ms", 3)
    with torch.no_grad():
        calibrator.weight.copy_(torch.tensor([[1.0, 0.5, -0.5], [0.0, 0.75, 0.25], [-1.0, 0.0, 2.0]]))
    finding = findings(segcal.audit(calibrator))["offset"]
    assert finding.holds
    assert not finding.promised
    assert finding.how == "parameters"
    assert "no dependence was found" in finding.statement


@pytest.mark.parametrize(
    ("name", "parameter"), [("cms_ap", "weight"), ("cms_op", "bias"), ("ts", "inverse_temperature")]
)
def test_parameters_outside_their_cone_break_the_promise(name, parameter):
    calibrator = moved(name)
    with torch.no_grad():
        getattr(calibrator, parameter).view(-1)[0] = -2.0
    result = segcal.audit(calibrator)
    assert not result.passed
    assert not findings(result)["decision"].holds
    assert "A PROMISE IS BROKEN" in str(result)
    assert "off by" in findings(result)["decision"].statement


def test_flips_on_given_cases_are_counted_as_a_plain_loop_counts_them():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 5, 7)), rng.normal(size=(3, 4))]
    calibrator = moved("ms_c")
    expected = 0
    for array in arrays:
        for z in torch.tensor(array).reshape(3, -1).T:
            expected += int(int(calibrator(z[None]).argmax()) != int(z.argmax()))
    result = segcal.audit(calibrator, segcal.ArrayCases(logits=arrays))
    assert (result.flips, result.voxels) == (expected, 39)
    assert expected > 0
    assert f"{expected} of 39 voxels changed their class" in str(result)


def test_near_ties_in_float32_cases_do_not_count_as_flips_of_an_argmax_preserving_calibrator():
    top = np.float32(20.0)
    logits = np.stack([np.full(50, top), np.full(50, np.nextafter(top, np.float32(21))), np.full(50, np.float32(-3))])
    result = segcal.audit(moved("cms_ap"), segcal.ArrayCases(logits=[logits]))
    assert result.flips == 0


def test_an_audit_is_plain_data():
    data = segcal.audit(moved("vs")).to_dict()
    assert data["calibrator"] == "vs"
    assert data["findings"][0]["promise"] == "offset"


def test_what_is_not_a_calibrator_is_refused():
    with pytest.raises(
        segcal.InputError, match=r"calibrator is 'ts', but a Calibrator or the result of segcal.fit is needed"
    ):
        segcal.audit("ts")


def test_cases_of_another_class_count_are_refused():
    with pytest.raises(segcal.InputError, match="the calibrator has 3 classes, but the cases have 2"):
        segcal.audit(moved("ts"), segcal.ArrayCases(logits=[np.zeros((2, 4))]))


def test_a_calibrator_that_sees_images_is_audited_without_one(randomise):
    found = segcal.audit(randomise(segcal.make_calibrator("lts_ti", 3, image_channels=2)))
    assert found.passed
    assert [finding.how for finding in found.findings] == ["construction", "construction"]


def test_arrays_may_be_tried_as_they_are():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 7))
    found = segcal.audit(moved("ms_c"), logits)
    assert found == segcal.audit(moved("ms_c"), segcal.ArrayCases(logits=list(logits)))
    assert found.voxels == 70


@pytest.fixture
def flipping():
    """Class 2 gains 3, whatever the logits."""
    calibrator = segcal.make_calibrator("vs", 3)
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


def test_a_case_of_several_steps_is_counted_whole(flipping, monkeypatch):
    logits = torch.zeros(3, 90, 11)
    logits[1, 40:] = 9
    monkeypatch.setattr("segcal.evaluation.audit.STEP_VALUES", 300)
    found = measure(flipping, Case("a", logits))
    assert (found.voxels, found.flips) == (990, 440)


def test_voxels_that_see_each_other_are_shifted_apart_and_in_slabs_as_in_one(randomise, monkeypatch):
    calibrator = randomise(segcal.make_calibrator("lts_ti", 3))
    case = Case("a", 3 * torch.randn(3, 40, 17, generator=torch.Generator().manual_seed(0)))
    whole = measure(calibrator, case)
    monkeypatch.setattr("segcal.evaluation.audit.STEP_VALUES", 300)
    assert (whole.voxels, whole.flips, whole.rise) == (680, 0, 0.0)
    assert whole.change < 1e-6
    assert measure(calibrator, case).voxels == 680
    dependent = randomise(segcal.make_calibrator("lts", 3))
    assert measure(dependent, case).change > 1e-3


def test_adversarial_voxels_have_leaders_that_almost_tie():
    voxels = adversarial(4)
    leaders = voxels.topk(2, dim=1).values
    near = (leaders[:, 0] - leaders[:, 1]) < 2e-9
    assert near.double().mean() > 0.3
    assert torch.equal(voxels, adversarial(4))
