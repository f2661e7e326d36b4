import pytest
import torch
from torch import nn

from segcal.demo.unet import SmallNetwork, UNet, make_level
from segcal.errors import InputError


@pytest.mark.parametrize(("dims", "space"), [(2, (16, 24)), (2, (13, 19)), (3, (8, 12, 16)), (3, (7, 9, 11))])
def test_logits_have_the_size_of_the_image_whatever_it_is(dims, space):
    network = UNet(channels=3, num_classes=5, dims=dims, widths=(4, 6, 8)).eval()
    assert network(torch.rand(2, 3, *space)).shape == (2, 5, *space)


@pytest.mark.parametrize("dims", [2, 3])
def test_parameters_are_as_many_as_counted_by_hand(dims):
    taps = 3**dims
    # Down: 2->4->4, 4->6->6. Up: (6+4)->4->4. Each convolution has a scale and a shift a feature. Head: 4->3 with bias.
    convolutions = taps * (2 * 4 + 4 * 4 + 4 * 6 + 6 * 6 + 10 * 4 + 4 * 4)
    expected = convolutions + 2 * (4 + 4 + 6 + 6 + 4 + 4) + 4 * 3 + 3
    network = UNet(channels=2, num_classes=3, dims=dims, widths=(4, 6))
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_every_level_contributes_to_the_output():
    network = UNet(channels=2, num_classes=3, widths=(4, 6, 8))
    network(torch.rand(2, 2, 12, 20)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_a_pixel_sees_far_away_pixels():
    network = UNet(channels=1, num_classes=2, widths=(4, 4, 4)).eval()
    image = torch.rand(1, 1, 32, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    network(image)[0, :, 16, 24].sum().backward()
    assert image.grad[0, 0, 16, 24 + 9] != 0


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="dims is 4, but 2 or 3 is needed"):
        UNet(1, 2, dims=4)
    with pytest.raises(InputError, match=r"widths is \(4, 0\), but positive numbers are needed"):
        UNet(1, 2, widths=(4, 0))
    with pytest.raises(InputError, match="num_classes is 1"):
        UNet(1, 1)
    with pytest.raises(InputError, match=r"image has shape \(1, 8, 8\).*2 axes of space.*image\[None\]"):
        UNet(1, 2)(torch.rand(1, 8, 8))


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
    parts = [make_level(2, 1, 3), make_level(2, 3, 4), make_level(2, 3 + 4, 3), nn.Conv2d(3, 2, 1)]
    wanted = [value for part in parts for value in part.state_dict().values()]
    for found, value in zip(network.state_dict().values(), wanted, strict=True):
        assert torch.equal(found, value)
