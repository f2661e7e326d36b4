from collections import OrderedDict

import pytest
import torch
from torch import nn

import segcal
from segcal.errors import InputError


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
