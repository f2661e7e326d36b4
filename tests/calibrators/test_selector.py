import numpy as np
import pytest
import torch

from segcal.calibrators.selector import Selector, selector_input


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
