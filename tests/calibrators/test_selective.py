"""Selective scaling, its selector, and Meta-Cal."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from segcal import audit, make_calibrator
from segcal.calibrators import registry_entry
from segcal.calibrators.selective import Selector, selector_input
from segcal.errors import InputError


@pytest.fixture
def flagging(filled):
    """Selective scaling that flags the voxels in which class 0 has a probability above one half."""

    def made(wrong, right=None, **options):
        own = {} if right is None else {"inverse_temperature_right": 1 / right}
        calibrator = filled("selective", 4, options, inverse_temperature_wrong=1 / wrong, **own)
        selector = calibrator.selector
        layers = [(torch.zeros_like(w), torch.zeros_like(b)) for w, b in layers_of(selector)]
        layers[0][0][0, 0], layers[0][1][0] = 1.0, np.log(2)  # relu(log p_0 + log 2) > 0
        layers[1][0][0, 0] = layers[2][0][0, 0] = layers[3][0][0, 0] = 1.0
        selector.set_layers(layers)
        return calibrator

    return made


def layers_of(selector):
    return [(getattr(selector, f"weight_{n}").detach(), getattr(selector, f"bias_{n}").detach()) for n in range(4)]


def test_flagged_voxels_get_one_temperature_and_the_others_another(flagging, voxels):
    z = voxels(4).numpy()
    flagged = softmax(z, -1)[:, :1] > 0.5
    assert 0 < flagged.sum() < len(z)
    expected = np.where(flagged, softmax(z / 3, -1), softmax(z / 0.5, -1))
    np.testing.assert_allclose(flagging(3.0, 0.5)(voxels(4)).exp(), expected, rtol=1e-10)


@pytest.mark.parametrize("place", ["unflagged", "before"])
def test_an_inner_calibrator_maps_what_is_not_flagged_and_before_it_is_what_the_selector_sees(place, flagging, voxels):
    calibrator = flagging(5.0, inner="ts", place=place)
    calibrator.inner.inverse_temperature.fill_(0.5)
    z = voxels(4).numpy()
    seen = z / 2 if place == "before" else z
    flagged = softmax(seen, -1)[:, :1] > 0.5
    assert place == "unflagged" or (flagged != (softmax(z, -1)[:, :1] > 0.5)).any()
    expected = np.where(flagged, softmax(seen / 5, -1), softmax(z / 2, -1))
    np.testing.assert_allclose(calibrator(voxels(4)).exp(), expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_decision_survives_a_temperature_of_1e10(dtype, classes, filled, voxels):
    """Definitions 6: a plain division loses it in float32, and this is why the lead exists."""
    calibrator = filled("selective", classes, inverse_temperature_wrong=1e-10)
    calibrator.selector.set_constant(flagged=True)
    logits = torch.cat([voxels(classes), 1e-3 * voxels(classes)]).to(dtype)
    log_probs, before = calibrator(logits), logits.argmax(1)
    assert dtype == torch.float64 or not torch.equal((logits.float() / 1e10).softmax(1).argmax(1), before)
    assert torch.equal(log_probs.argmax(1), before)
    assert torch.equal(log_probs.exp().argmax(1), before)
    assert float((log_probs.exp() - 1 / classes).abs().max()) < 1e-6


@pytest.mark.parametrize("place", ["unflagged", "before"])
@pytest.mark.parametrize(
    ("inner", "invariant", "preserves"),
    [("cms_ap", True, "argmax"), ("cms_op", True, "order"), ("dc", True, None), ("ms", False, None)],
)
def test_it_promises_what_the_inner_calibrator_promises(inner, invariant, preserves, place, filled, voxels):
    calibrator = filled("selective", 3, {"inner": inner, "place": place})
    assert (calibrator.translation_invariant, calibrator.preserves) == (invariant, preserves)
    assert calibrator.num_identifiable() == 1 + calibrator.inner.num_identifiable()
    torch.testing.assert_close(calibrator(voxels(3)), voxels(3).log_softmax(1), rtol=0, atol=1e-9)
    assert calibrator.evidence()["decision"].violation == 0


def test_an_inner_calibrator_that_breaks_its_promise_is_seen(filled):
    calibrator = filled("selective", 3, {"inner": "ts"})
    calibrator.inner.inverse_temperature.fill_(-0.5)
    assert calibrator.evidence()["decision"].violation == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperatures": "paper", "repeats": 4},
        {"inner": "cms_op", "place": "before"},
        {"inner": {"name": "histogram", "options": {"bins": 7}}},
        {"inner": {"name": "selective", "options": {"inner": "ts"}}},
    ],
)
def test_its_name_and_options_make_it_again(options):
    calibrator = make_calibrator("selective", 3, **options)
    assert registry_entry(calibrator) == ("selective", options)
    again = make_calibrator("selective", 3, **options)
    shapes = [{key: value.shape for key, value in each.state_dict().items()} for each in (calibrator, again)]
    assert shapes[0] == shapes[1]


def test_an_inner_calibrator_that_the_registry_does_not_know_cannot_be_written_down():
    class Own(type(make_calibrator("identity", 3))):
        pass

    with pytest.raises(InputError, match=r"inner is a Own, but only calibrators of segcal.CALIBRATORS"):
        registry_entry(make_calibrator("selective", 3, inner=Own(3)))


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_selector_is_the_network_of_the_paper(classes, voxels):
    generator, selector = torch.Generator().manual_seed(classes), Selector(classes).requires_grad_(False)
    for parameter in selector.parameters():
        parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    values = np.log(softmax(voxels(classes).numpy(), -1) + 1e-16).T
    for layer, (weight, bias) in enumerate(layers_of(selector)):
        values = weight.numpy() @ values + bias.numpy()[:, None]
        values = values if layer == 3 else np.maximum(values, 0)
    np.testing.assert_allclose(selector(voxels(classes)), values[0] - values[1], rtol=1e-9, atol=1e-9)


def test_small_probabilities_are_floored_as_in_the_published_code():
    found = selector_input(torch.tensor([[0.0, -30.0, -800.0]], dtype=torch.float64))
    np.testing.assert_allclose(found[0], np.log(np.exp([0.0, -30.0, -800.0]) + 1e-16), rtol=1e-12, atol=1e-12)


def test_a_new_selector_flags_nothing_and_a_constant_one_all_or_nothing(voxels):
    selector = Selector(4).requires_grad_(False)
    assert not (selector(voxels(4)) > 0).any()
    for flagged in (True, False):
        selector.set_constant(flagged)
        assert ((selector(voxels(4)) > 0) == flagged).all()


def entropies(z):
    p = softmax(z, -1)
    return -(p * np.log(p)).sum(-1)


@pytest.mark.parametrize("name", ["meta_cal", "meta_cal_large_t"])
def test_below_the_threshold_meta_cal_is_a_temperature_and_above_it_almost_uniform(name, filled, voxels):
    found = filled(name, 4, threshold=0.4, inverse_temperature=0.5)(voxels(4)).exp()
    z = voxels(4).numpy()
    sure = entropies(z)[:, None] < 0.4
    assert 0 < sure.sum() < len(z)
    above = np.full_like(z, 0.25) if name == "meta_cal" else softmax(z / 1e4, -1)
    np.testing.assert_allclose(found, np.where(sure, softmax(z / 2, -1), above), atol=1e-12)


def test_uniform_voxels_lose_their_decision_and_the_audit_says_so(filled, voxels):
    calibrator, z = filled("meta_cal", 4, threshold=0.4, inverse_temperature=0.5), voxels(4)
    unsure = torch.as_tensor(entropies(z.numpy()) >= 0.4)
    assert (calibrator(z).argmax(1)[unsure] == 0).all()
    assert torch.equal(calibrator(z).argmax(1)[~unsure], z.argmax(1)[~unsure])
    found = {finding.promise: finding for finding in audit(calibrator).findings}
    assert "does not keep the winning class" in found["decision"].statement
    assert found["offset"].holds


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_temperature_keeps_every_decision_and_a_negative_one_is_seen(dtype, filled, voxels):
    calibrator = filled("meta_cal_large_t", 4, {"large_temperature": 1e10}, threshold=0.0)
    assert torch.equal(calibrator(voxels(4).to(dtype)).argmax(1), voxels(4).argmax(1))
    assert audit(calibrator).passed
    calibrator.inverse_temperature_unsure.fill_(-0.25)
    assert calibrator.evidence()["decision"] == ("both inverse temperatures are positive", 0.25)
