r"""The selector of selective scaling: a small network that says which voxels are probably wrong.

Voxel by voxel, on :math:`x = \log(S(z) + 10^{-16})` in the order of the classes:

.. math:: C \to C \to 2C \to C \to 2, \qquad h_{l+1} = \mathrm{ReLU}(W_l h_l + b_l),

the last layer without ReLU; its two outputs stand for *wrong* and *right*. The published network has a batch
normalisation before each ReLU, which is part of training alone: :mod:`segcal.fitting.selector` folds it into the
weights, so that nothing here depends on a mode or on other voxels of a batch. `weight_l` and `bias_l` hold the layers.

A new selector flags nothing: its first layer is the identity, all others are zero, and a tie is not *wrong*.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.numerics import canonical_logits

# log of what the published code adds to a probability before it takes the logarithm.
LOG_FLOOR = math.log(1e-16)


def widths(num_classes: int) -> tuple[int, ...]:
    """Return the number of values before, between and after the layers.

    >>> widths(3)
    (3, 3, 6, 3, 2)
    """
    return num_classes, num_classes, 2 * num_classes, num_classes, 2


def selector_input(logits: Tensor, axis: int = 1) -> Tensor:
    """Return log(S(z) + 1e-16), computed in the log domain."""
    log_probs = canonical_logits(logits, axis)
    return torch.logaddexp(log_probs, torch.full_like(log_probs, LOG_FLOOR))


class Selector(nn.Module):
    """Says which voxels are probably mispredicted.

    Args:
        num_classes: number of classes C.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.widths = widths(num_classes)
        for layer, (before, after) in enumerate(pairwise(self.widths)):
            weight = torch.zeros(after, before, dtype=torch.float64)
            if layer == 0:
                weight.fill_diagonal_(1.0)
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight))
            self.register_parameter(f"bias_{layer}", nn.Parameter(torch.zeros(after, dtype=torch.float64)))

    def forward(self, logits: Tensor) -> Tensor:
        """Return, as ``(batch, *space)``, by how much *wrong* is above *right*; flagged where it is positive."""
        shape = logits.shape
        values = selector_input(logits).reshape(shape[0], shape[1], -1)
        last = len(self.widths) - 2
        for layer in range(last + 1):
            weight = getattr(self, f"weight_{layer}").to(logits.dtype)
            bias = getattr(self, f"bias_{layer}").to(logits.dtype)
            values = torch.matmul(weight, values) + bias[:, None]
            values = values if layer == last else torch.relu(values)
        return (values[:, 0] - values[:, 1]).reshape(shape[0], *shape[2:])

    @torch.no_grad()
    def set_layers(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        """Take over the weights and biases of trained layers."""
        for layer, (weight, bias) in enumerate(layers):
            getattr(self, f"weight_{layer}").copy_(weight)
            getattr(self, f"bias_{layer}").copy_(bias)

    def set_constant(self, flagged: bool) -> None:
        """Flag every voxel, or none."""
        layers = [(torch.zeros(after, before), torch.zeros(after)) for before, after in pairwise(self.widths)]
        layers[-1][1][0 if flagged else 1] = 1.0
        self.set_layers(layers)
