import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators import registry_entry
from segcal.calibrators.selective import Selector, selector_input
from segcal.errors import InputError


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def made(calibrator, wrong, right=None):
    with torch.no_grad():
        calibrator.inverse_temperature_wrong.fill_(1 / wrong)
        if right is not None:
            calibrator.inverse_temperature_right.fill_(1 / right)
    return calibrator


def flags_class_0(calibrator):
    """Let the selector flag the voxels in which class 0 has a probability above one half."""
    selector, classes = calibrator.selector, calibrator.num_classes
    layers = [(torch.zeros_like(w), torch.zeros_like(b)) for w, b in _layers(selector)]
    layers[0][0][0, 0], layers[0][1][0] = 1.0, np.log(2)  # relu(log p_0 + log 2) > 0
    layers[1][0][0, 0] = layers[2][0][0, 0] = layers[3][0][0, 0] = 1.0
    selector.set_layers(layers)
    assert classes == selector.widths[0]
    return calibrator


def _layers(selector):
    return [(getattr(selector, f"weight_{n}").detach(), getattr(selector, f"bias_{n}").detach()) for n in range(4)]


def test_flagged_voxels_get_one_temperature_and_the_others_another(voxels):
    calibrator = made(flags_class_0(make_calibrator("selective", 4)), 3.0, 0.5)
    logits = voxels(4)
    with torch.no_grad():
        found = calibrator(logits).exp().numpy()
    z = logits.numpy()
    flagged = softmax(z)[:, 0] > 0.5
    assert 0 < flagged.sum() < len(z)
    expected = np.where(flagged[:, None], softmax(z / 3), softmax(z / 0.5))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_decision_survives_a_temperature_of_1e10(dtype, classes, voxels):
    calibrator = made(make_calibrator("selective", classes), 1e10, 1.0)
    calibrator.selector.set_constant(flagged=True)
    logits = torch.cat([voxels(classes), 1e-3 * voxels(classes)]).to(dtype)
    with torch.no_grad():
        log_probs = calibrator(logits)
        before = logits.argmax(1)
    assert torch.equal(log_probs.argmax(1), before)
    assert torch.equal(log_probs.exp().argmax(1), before)
    assert float((log_probs.exp() - 1 / classes).abs().max()) < 1e-6


def test_the_trap_a_plain_division_loses_the_decision_in_float32():
    # Definitions 6: this is why the lead exists.
    z = torch.tensor([[3.0, 20.0, -5.0, 7.0]])
    assert int(torch.softmax(z / 1e10, 1).argmax()) == 0
    calibrator = made(make_calibrator("selective", 4), 1e10, 1.0)
    calibrator.selector.set_constant(flagged=True)
    with torch.no_grad():
        assert int(calibrator(z).argmax()) == 1


def test_an_inner_calibrator_maps_what_is_not_flagged(voxels):
    calibrator = made(flags_class_0(make_calibrator("selective", 4, inner="ts")), 5.0)
    with torch.no_grad():
        calibrator.inner.inverse_temperature.fill_(0.5)
        found = calibrator(voxels(4)).exp().numpy()
    z = voxels(4).numpy()
    flagged = softmax(z)[:, :1] > 0.5
    np.testing.assert_allclose(found, np.where(flagged, softmax(z / 5), softmax(z / 2)), rtol=1e-10)


def test_an_inner_calibrator_before_it_is_what_the_selector_sees(voxels):
    calibrator = made(flags_class_0(make_calibrator("selective", 4, inner="ts", place="before")), 5.0)
    with torch.no_grad():
        calibrator.inner.inverse_temperature.fill_(0.5)
        found = calibrator(voxels(4)).exp().numpy()
    z = voxels(4).numpy() / 2
    flagged = softmax(z)[:, :1] > 0.5
    assert (flagged[:, 0] != (softmax(2 * z)[:, 0] > 0.5)).any()
    np.testing.assert_allclose(found, np.where(flagged, softmax(z / 5), softmax(z)), rtol=1e-10)


@pytest.mark.parametrize("place", ["unflagged", "before"])
@pytest.mark.parametrize(
    ("inner", "invariant", "preserves"),
    [("cms_ap", True, "argmax"), ("cms_op", True, "order"), ("dc", True, None), ("ms", False, None)],
)
def test_it_promises_what_the_inner_calibrator_promises(inner, invariant, preserves, place, voxels):
    calibrator = make_calibrator("selective", 3, inner=inner, place=place)
    assert (calibrator.translation_invariant, calibrator.preserves) == (invariant, preserves)
    assert calibrator.num_identifiable() == 1 + calibrator.inner.num_identifiable()
    with torch.no_grad():
        torch.testing.assert_close(calibrator(voxels(3)), voxels(3).log_softmax(1), rtol=0, atol=1e-9)
    assert calibrator.evidence()["decision"].violation == 0


def test_an_inner_calibrator_that_breaks_its_promise_is_seen():
    calibrator = make_calibrator("selective", 3, inner="ts")
    with torch.no_grad():
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
    name, found = registry_entry(calibrator)
    assert (name, found) == ("selective", options)
    again = make_calibrator(name, 3, **found)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in calibrator.state_dict().items()
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperatures": "best"}, "temperatures is 'best', but it must be one of nll, ece, paper"),
        ({"place": "after"}, "place is 'after', but it must be one of unflagged, before"),
        ({"repeats": -1}, "repeats is -1, but a number of at least 0 is needed"),
        ({"inner": 3}, "inner is int, but a calibrator is needed"),
        ({"inner": "tss"}, "no calibrator is named 'tss'"),
        ({"inner": {"nam": "ts"}}, "inner is {'nam': 'ts'}, but a name, or a name and options, is needed"),
        ({"inner": make_calibrator("ts", 5)}, "inner is ts for 5 classes, but a calibrator that"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        make_calibrator("selective", 3, **options)


def test_an_inner_calibrator_that_the_registry_does_not_know_cannot_be_written_down():
    class Own(type(make_calibrator("identity", 3))):
        pass

    with pytest.raises(InputError, match=r"inner is a Own, but only calibrators of segcal.CALIBRATORS"):
        registry_entry(make_calibrator("selective", 3, inner=Own(3)))


def by_hand(selector, z):
    """One voxel through the layers, in plain numpy."""
    p = np.exp(z - z.max())
    values = np.log(p / p.sum() + 1e-16)
    for layer in range(4):
        weight = getattr(selector, f"weight_{layer}").detach().numpy()
        bias = getattr(selector, f"bias_{layer}").detach().numpy()
        values = weight @ values + bias
        values = values if layer == 3 else np.maximum(values, 0)
    return values[0] - values[1]


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_it_is_the_network_of_the_paper(classes, voxels):
    generator = torch.Generator().manual_seed(classes)
    selector = Selector(classes)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        logits = voxels(classes)
        found = selector(logits)
    np.testing.assert_allclose(found, [by_hand(selector, z) for z in logits.numpy()], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("classes", "with_normalisation"), [(2, 50), (5, 197), (20, 2282)])
def test_it_has_the_published_number_of_weights(classes, with_normalisation):
    # The published count has a scale and a shift for each of 4 C normalised values; they are folded here.
    count = sum(parameter.numel() for parameter in Selector(classes).parameters())
    assert count == with_normalisation - 8 * classes == 5 * classes**2 + 6 * classes + 2


def test_small_probabilities_are_floored_as_in_the_published_code():
    found = selector_input(torch.tensor([[0.0, -30.0, -800.0]], dtype=torch.float64))
    np.testing.assert_allclose(found[0], np.log(np.exp([0.0, -30.0, -800.0]) + 1e-16), rtol=1e-12, atol=1e-12)


def test_a_new_selector_flags_nothing_and_a_constant_one_all_or_nothing(voxels):
    selector = Selector(4)
    with torch.no_grad():
        assert not (selector(voxels(4)) > 0).any()
        selector.set_constant(flagged=True)
        assert (selector(voxels(4)) > 0).all()
        selector.set_constant(flagged=False)
        assert not (selector(voxels(4)) > 0).any()


def test_every_space_gives_one_margin_a_voxel():
    with torch.no_grad():
        assert Selector(3)(torch.zeros(2, 3)).shape == (2,)
        assert Selector(3)(torch.zeros(2, 3, 4, 5, 6)).shape == (2, 4, 5, 6)


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (1, 3, 0, 5), (0, 3)])
def test_nothing_in_is_nothing_out(shape):
    assert make_calibrator("selective", 3)(torch.zeros(shape)).shape == shape
