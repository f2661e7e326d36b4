from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

import segcal
from segcal.errors import InputError, SuspicionWarning
from segcal.integrations.attach import calibrated_probs, check_classes, folder_of, need, to_calibrator


class Network(nn.Module):
    """A network of one layer that answers as some library does."""

    def __init__(self, answer=lambda logits: logits, stride=1):
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 1, stride=stride)
        self.answer = answer

    def forward(self, image):
        return self.answer(self.layer(image))


IMAGE = torch.randn(2, 2, 12, 9, generator=torch.Generator().manual_seed(0))


ANSWERS = {
    "tensor": (lambda z: z, lambda out: out),
    "tuple, as smp with a head for classes": (lambda z: (z, z.mean()), lambda out: out[0]),
    "dictionary, as torchvision": (lambda z: OrderedDict(out=z, aux=z), lambda out: out["out"]),
    "logits": (lambda z: {"logits": z}, lambda out: out["logits"]),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_logits_are_calibrated_where_a_network_keeps_them(answer, randomise):
    give, take = ANSWERS[answer]
    network, calibrator = Network(give), randomise(segcal.make_calibrator("cms_op", 3))
    found = segcal.attach(network, calibrator)(IMAGE)
    assert torch.equal(take(found), calibrator(network.layer(IMAGE)))
    if answer.startswith("dictionary"):
        assert torch.equal(found["aux"], network.layer(IMAGE))


def test_outputs_that_look_like_probabilities_bring_one_warning(recwarn):
    calibrator = segcal.make_calibrator("ts", 3)
    calibrated = segcal.attach(Network(lambda logits: logits.softmax(1)), calibrator)
    with pytest.warns(SuspicionWarning, match="all lie in 0 to 1 and sum to 1, but logits are calibrated"):
        calibrated(IMAGE)
    recwarn.clear()
    calibrated(IMAGE)
    segcal.attach(Network(), calibrator)(IMAGE)
    assert not recwarn.list


def test_coarse_logits_are_enlarged_first_or_refused():
    network, calibrator = Network(stride=3), segcal.make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.1)
    with pytest.raises(InputError, match=r"logits have space \(4, 3\), but its input has \(12, 9\): .* upsample=True"):
        segcal.attach(network, calibrator)(IMAGE)
    coarse = network.layer(IMAGE)
    large = nn.functional.interpolate(coarse, size=(12, 9), mode="bilinear", align_corners=False)
    found = segcal.attach(network, calibrator, upsample=True)(IMAGE)
    torch.testing.assert_close(found, torch.log_softmax(0.1 * large, 1))
    assert torch.equal(found.argmax(1), large.argmax(1))
    kept = segcal.attach(network, calibrator, upsample=False)(IMAGE)
    assert torch.equal(kept, calibrator(coarse))


def test_what_cannot_be_attached_is_one_sentence():
    calibrator = segcal.make_calibrator("ts", 3)
    with pytest.raises(InputError, match=r"model is function, but a torch.nn.Module is needed. See help"):
        segcal.attach(lambda x: x, calibrator)
    attached = segcal.attach(Network(), calibrator)
    with pytest.raises(InputError, match="model is calibrated already, but one calibrator is enough"):
        segcal.attach(attached, calibrator)
    with pytest.raises(InputError, match=r"the network returns str, but a tensor, .* Wrap the network"):
        segcal.attach(Network(lambda z: "logits"), calibrator)(IMAGE)
    with pytest.raises(InputError, match="this calibrator has 4 classes and needs"):
        segcal.attach(Network(), segcal.make_calibrator("ts", 4))(IMAGE)


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_a_calibrated_network_in_a_sliding_window_is_refused():
    inferers = pytest.importorskip("monai.inferers", reason="MONAI is not installed: make setup-frameworks")
    attached = segcal.attach(Network(), segcal.make_calibrator("ts", 3))
    with pytest.raises(InputError, match=r"windows are averaged afterwards, .*CalibratedInferer\(inferer, calibrator"):
        inferers.sliding_window_inference(IMAGE, (8, 8), 2, attached)
    assert inferers.SimpleInferer()(IMAGE, attached).shape == (2, 3, 12, 9)


def test_a_calibrator_comes_from_wherever_it_is(tmp_path):
    fitted = segcal.fit("ts", torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8)))
    segcal.save(fitted, tmp_path / "cal")
    assert to_calibrator(fitted) is fitted.calibrator
    assert to_calibrator(fitted.calibrator) is fitted.calibrator
    assert to_calibrator(tmp_path / "cal").temperature == fitted.calibrator.temperature
    with pytest.raises(InputError, match=r"calibrator is int, but a folder of segcal.save, .* Pass one of these"):
        to_calibrator(3)


@pytest.mark.parametrize("name", ["cms_ap", "vs"])
def test_probabilities_are_those_that_apply_writes(name, randomise, tmp_path):
    calibrator = randomise(segcal.make_calibrator(name, 3))
    fitted = segcal.fit("ts", torch.randn(2, 3, 9, 8), torch.randint(0, 3, (2, 9, 8)))
    fitted = type(fitted)(calibrator, fitted.certificate, fitted.config)
    logits = (4 * np.random.default_rng(0).normal(size=(3, 7, 6, 5))).astype(np.float32)
    logits[1, :, :3] = logits[0, :, :3]  # ties
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", logits)
    cases = segcal.open_cases(tmp_path / "in", kind="logits")
    segcal.apply(fitted, cases, tmp_path / "out", output_kind="probs")
    probs = calibrated_probs(calibrator, logits)
    assert np.array_equal(probs.numpy(), np.load(tmp_path / "out" / "a.npy"))
    if calibrator.preserves:
        assert np.array_equal(probs.argmax(0).numpy(), logits.argmax(0))


def test_what_is_shared_and_wrong_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"the network has 4 classes, but the calibrator was fitted for 3. Use the"):
        check_classes(segcal.make_calibrator("ts", 3), 4, "the network")
    with pytest.raises(InputError, match=r"no_such is not installed, .* pip install 'segcal\[some\]'"):
        need("no_such", "some")
    with pytest.raises(InputError, match="is in a folder that does not exist"):
        folder_of(tmp_path / "none" / "x.onnx")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["ts", "ets", "cms_ap", "cms_op", "isotonic"]), st.integers(0, 3), st.data())
def test_the_winner_of_float32_probabilities_is_that_of_the_logits(randomise, name, seed, data):
    """Whatever the logits are: equal, one unit in the last place apart, or so large that all but one become zero."""
    shape = (4, 9)
    start = data.draw(arrays(np.float32, shape, elements=st.floats(-60, 60, width=32)))
    steps = data.draw(arrays(np.int8, shape, elements=st.integers(0, 3)))
    near = np.nextafter(start[:1], np.float32(np.inf))
    logits = np.choose(steps, [start, np.broadcast_to(start[:1], shape), np.broadcast_to(near, shape), 10 * start])
    calibrator = randomise(segcal.make_calibrator(name, 4), seed=seed)
    probs = calibrated_probs(calibrator, logits.astype(np.float32))
    assert np.array_equal(probs.argmax(0).numpy(), logits.argmax(0))
    np.testing.assert_allclose(probs.sum(0).numpy(), 1, atol=1e-5)
