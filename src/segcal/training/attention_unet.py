r"""A small attention U-Net (Oktay et al., MIDL 2018): the coarser level decides what of the finer one is passed on.

With the upsampled features g and the skip connection x, each place of x is multiplied by

.. math:: \alpha = \sigma(\psi \, \mathrm{relu}(W_g g + W_x x + b) + c),

all three products being convolutions of width 1. Everything else is the U-Net of `unet`.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.training.blocks import CONVOLUTIONS, make_level, upsample
from segcal.training.network import SmallNetwork


class Gate(nn.Module):
    """Weighs a skip connection by what the coarser level sees.

    Args:
        dims: 2 or 3.
        coarse: features of the coarser level.
        fine: features of the skip connection.
    """

    def __init__(self, dims: int, coarse: int, fine: int) -> None:
        super().__init__()
        inner = max(fine // 2, 1)
        self.of_coarse = CONVOLUTIONS[dims](coarse, inner, 1, bias=False)
        self.of_fine = CONVOLUTIONS[dims](fine, inner, 1)
        self.score = CONVOLUTIONS[dims](inner, 1, 1)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Return the skip connection, weighed."""
        return fine * torch.sigmoid(self.score(torch.relu(self.of_coarse(coarse) + self.of_fine(fine))))


class AttentionUNet(SmallNetwork):
    """A U-Net whose skip connections pass through gates; arguments as of SmallNetwork."""

    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make the gates and the levels on the way up."""
        self.gates = nn.ModuleList(Gate(dims, below, here) for here, below in pairwise(widths))
        self.up = nn.ModuleList(make_level(dims, here + below, here) for here, below in pairwise(widths))

    def decode(self, levels: list[Tensor]) -> Tensor:
        """Return the features of the finest level on the way up."""
        *skips, features = levels
        for level, gate, skip in zip(reversed(self.up), reversed(self.gates), reversed(skips), strict=True):
            coarse = upsample(features, skip)
            features = level(torch.cat([coarse, gate(coarse, skip)], dim=1))
        return features
