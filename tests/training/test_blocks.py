import pytest
import torch

from segcal.errors import InputError
from segcal.training import BACKBONES
from segcal.training.blocks import check_image, check_sizes, encode, make_encoder, upsample

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
    levels = encode(make_encoder(2, 1, (2, 3, 4)).eval(), torch.rand(1, 1, 9, 14))
    assert [tuple(features.shape) for features in levels] == [(1, 2, 9, 14), (1, 3, 4, 7), (1, 4, 2, 3)]
    assert upsample(levels[2], levels[0]).shape == (1, 4, 9, 14)


def test_checks_say_what_is_needed():
    with pytest.raises(InputError, match=r"widths is \(\), but positive numbers are needed"):
        check_sizes(2, ())
    with pytest.raises(InputError, match="with 3 axes of space"):
        check_image(torch.zeros(1, 1, 4, 4), 3)
