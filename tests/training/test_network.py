import torch
from torch import nn

from segcal.training.blocks import make_encoder, make_level
from segcal.training.network import SmallNetwork
from segcal.training.unet import UNet


class Nothing(SmallNetwork):
    """Reads logits from the finest level of the encoder."""

    def build(self, dims, widths):
        self.built_with = (dims, tuple(widths))
        self.scale = nn.Parameter(torch.ones(()))

    def decode(self, levels):
        return self.scale * levels[0]


def test_what_is_built_between_encoder_and_head_is_used():
    network = Nothing(3, 4, dims=3, widths=(5, 6)).eval()
    assert network.built_with == (3, (5, 6))
    image = torch.rand(2, 3, 7, 9, 11)
    logits = network(image)
    assert logits.shape == (2, 4, 7, 9, 11)
    with torch.no_grad():
        network.scale.zero_()
        torch.testing.assert_close(network(image), network.head.bias.reshape(1, 4, 1, 1, 1).expand(2, 4, 7, 9, 11))


def test_weights_are_drawn_in_the_order_encoder_own_head():
    torch.manual_seed(0)
    network = UNet(1, 2, widths=(3, 4))
    torch.manual_seed(0)
    parts = [make_encoder(2, 1, (3, 4)), make_level(2, 3 + 4, 3), nn.Conv2d(3, 2, 1)]
    wanted = [value for part in parts for value in part.state_dict().values()]
    for found, value in zip(network.state_dict().values(), wanted, strict=True):
        assert torch.equal(found, value)
