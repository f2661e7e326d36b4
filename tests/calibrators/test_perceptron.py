import numpy as np
import pytest
import torch

from segcal.calibrators.perceptron import Perceptron
from segcal.errors import InputError


def test_it_is_linear_layers_with_relu_between():
    network = Perceptron(3, (4, 5), 2, seed=1)
    with torch.no_grad():
        network.weights[-1].normal_(generator=torch.Generator().manual_seed(0))
        for bias in network.biases:
            bias.normal_(generator=torch.Generator().manual_seed(2))
    values = torch.randn(7, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = values.numpy()
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ weight.detach().numpy().T + bias.detach().numpy()
        x = np.maximum(x, 0) if number < 2 else x
    np.testing.assert_allclose(network(values).detach().numpy(), x, rtol=1e-12)


def test_a_new_network_gives_zero_and_can_learn():
    network = Perceptron(3, (4,), 1, seed=0)
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(network(values).detach().abs().max()) == 0
    (network(values) - 1).square().mean().backward()
    assert float(network.weights[-1].grad.abs().max()) > 0.1


def test_the_seed_decides_the_start():
    first, same, other = (Perceptron(3, (4,), 1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.weights[0], same.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])


def test_one_scale_for_every_hidden_unit_is_not_identifiable():
    network = Perceptron(3, (4, 5), 2, seed=0)
    assert network.num_identifiable() == (3 * 4 + 4) + (4 * 5 + 5) + (5 * 2 + 2) - 9
    values = torch.randn(7, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        network.weights[-1].fill_(0.3)
        before = network(values)
        network.weights[0][1] *= 3
        network.biases[0][1] *= 3
        network.weights[1][:, 1] /= 3
        torch.testing.assert_close(network(values), before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("hidden", [(0,), (3, -1), (2.5,), (True,)])
def test_sizes_that_are_none_are_refused(hidden):
    with pytest.raises(InputError, match=r"hidden is .*, but a list of layer sizes of at least 1 is needed"):
        Perceptron(3, hidden, 1, seed=0)
