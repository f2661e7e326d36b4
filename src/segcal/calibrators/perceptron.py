r"""A small network for the voxel-by-voxel calibrators that learn a function: linear layers with ReLU between them.

The last layer starts at zero, so that the output of a new network is zero, whatever its input; the layers before it
start at random numbers of variance 2 / inputs (He et al.), without which they could not learn. Multiplying a hidden
unit's inputs and dividing its outputs by one positive number changes nothing: of the parameters, all but one for every
hidden unit are identifiable.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.errors import InputError


class Perceptron(nn.Module):
    """Maps ``(voxels, inputs)`` to ``(voxels, outputs)``.

    Args:
        inputs: how many numbers it sees.
        hidden: the sizes of the hidden layers.
        outputs: how many numbers it gives.
        seed: of the random start.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, seed: int) -> None:
        super().__init__()
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in hidden):
            raise InputError(
                f"hidden is {hidden!r}, but a list of layer sizes of at least 1 is needed. Use [32, 32], for example."
            )
        generator = torch.Generator().manual_seed(seed)
        sizes = [inputs, *hidden, outputs]
        weights, biases = [], []
        for before, after in pairwise(sizes):
            weight = math.sqrt(2 / before) * torch.randn(after, before, generator=generator, dtype=torch.float64)
            weights.append(nn.Parameter(weight))
            biases.append(nn.Parameter(torch.zeros(after, dtype=torch.float64)))
        nn.init.zeros_(weights[-1])
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)

    def forward(self, values: Tensor) -> Tensor:
        """Return the output of the network."""
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = nn.functional.linear(values, weight.to(values.dtype), bias.to(values.dtype))
            if number < last:
                values = nn.functional.relu(values)
        return values

    @torch.no_grad()
    def set_constant(self, value: float) -> None:
        """Give this number as every output, whatever the input."""
        self.weights[-1].zero_()
        self.biases[-1].fill_(value)

    def num_identifiable(self) -> int:
        """Return the number of parameters less one scale a hidden unit."""
        scales = sum(len(bias) for bias in self.biases) - len(self.biases[-1])
        return sum(parameter.numel() for parameter in self.parameters()) - scales
