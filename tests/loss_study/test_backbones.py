import pytest
import torch
from torch.nn.functional import interpolate, max_pool2d

from paper.loss_study.backbones import BACKBONES, AttentionUNet, Gate, UNetPlusPlus
from segcal.demo.unet import UNet, upsample
from segcal.errors import InputError


def test_a_gate_multiplies_each_place_by_a_number_between_zero_and_one():
    torch.manual_seed(1)
    gate = Gate(2, 3, 4)
    coarse, fine = torch.rand(1, 3, 5, 6), torch.rand(1, 4, 5, 6) + 0.1
    share = gate(coarse, fine) / fine
    assert bool(((share > 0) & (share < 1)).all())
    torch.testing.assert_close(share, share[:, :1].expand_as(share))
    features = torch.relu(gate.of_coarse(coarse) + gate.of_fine(fine))
    torch.testing.assert_close(share[:, :1], 1 / (1 + torch.exp(-gate.score(features))))


def test_a_shut_gate_keeps_the_skip_connection_out():
    torch.manual_seed(2)
    network = AttentionUNet(1, 2, widths=(4, 6)).eval()
    with torch.no_grad():
        network.gates[0].score.weight.zero_()
        network.gates[0].score.bias.fill_(-100.0)
    image = torch.rand(1, 1, 8, 8)
    coarse = torch.nn.functional.interpolate(
        network.down[1](torch.nn.functional.max_pool2d(network.down[0](image), 2)), (8, 8)
    )
    expected = network.head(network.up[0](torch.cat([coarse, torch.zeros(1, 4, 8, 8)], 1)))
    torch.testing.assert_close(network(image), expected)


def test_nodes_are_joined_as_written():
    """Three levels, every node by hand."""
    torch.manual_seed(3)
    network = UNetPlusPlus(1, 2, widths=(4, 5, 6)).eval()
    image = torch.rand(1, 1, 12, 8)
    x00 = network.down[0](image)
    x10 = network.down[1](max_pool2d(x00, 2))
    x20 = network.down[2](max_pool2d(x10, 2))
    (l01, l11), (l02,) = network.columns
    x01 = l01(torch.cat([x00, interpolate(x10, (12, 8))], 1))
    x11 = l11(torch.cat([x10, interpolate(x20, (6, 4))], 1))
    x02 = l02(torch.cat([x00, x01, interpolate(x11, (12, 8))], 1))
    torch.testing.assert_close(network(image), network.head(x02))


def test_one_level_is_a_plain_network():
    assert UNetPlusPlus(1, 2, widths=(4,))(torch.rand(1, 1, 5, 6)).shape == (1, 2, 5, 6)


SPACES = {2: (13, 19), 3: (7, 9, 11)}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("dims", [2, 3])
def test_every_backbone_gives_logits_of_the_size_of_the_image(name, dims):
    network = BACKBONES[name](channels=3, num_classes=5, dims=dims, widths=(4, 6, 8)).eval()
    assert network(torch.rand(2, 3, *SPACES[dims])).shape == (2, 5, *SPACES[dims])


@pytest.mark.parametrize("name", BACKBONES)
def test_every_parameter_of_every_backbone_has_a_say(name):
    torch.manual_seed(0)
    network = BACKBONES[name](channels=2, num_classes=3, widths=(4, 6, 8))
    network(torch.rand(2, 2, 12, 20)).square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", BACKBONES)
def test_wrong_sizes_are_refused_by_every_backbone(name):
    with pytest.raises(InputError, match="dims is 1, but 2 or 3 is needed"):
        BACKBONES[name](1, 2, dims=1)
    with pytest.raises(InputError, match=r"image has shape \(1, 8, 8\)"):
        BACKBONES[name](1, 2)(torch.rand(1, 8, 8))


def test_an_encoder_halves_the_space_and_an_upsampling_undoes_it():
    levels = []
    network = UNet(1, 2, widths=(2, 3, 4)).eval()
    network.decode = lambda found: levels.extend(found) or found[0]
    network(torch.rand(1, 1, 9, 14))
    assert [tuple(features.shape) for features in levels] == [(1, 2, 9, 14), (1, 3, 4, 7), (1, 4, 2, 3)]
    assert upsample(levels[2], levels[0]).shape == (1, 4, 9, 14)


def test_checks_say_what_is_needed():
    with pytest.raises(InputError, match=r"widths is \(\), but positive numbers are needed"):
        UNet(1, 2, widths=())
    with pytest.raises(InputError, match="with 3 axes of space"):
        UNet(1, 2, dims=3)(torch.zeros(1, 1, 4, 4))
