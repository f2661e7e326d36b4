r"""The other networks of the study, each a U-Net with one thing changed.

Attention U-Net (Oktay et al., MIDL 2018): the coarser level decides what of the finer one is passed on. With the
upsampled features g and the skip connection x, each place of x is multiplied by

.. math:: \alpha = \sigma(\psi \, \mathrm{relu}(W_g g + W_x x + b) + c),

all three products being convolutions of width 1.

UNet++ (Zhou et al., IEEE TMI 2020): the gap between encoder and decoder is filled with nodes. Node :math:`X_{i,0}` is
level i of the encoder, and

.. math:: X_{i,j} = L_{ij}([X_{i,0}, \dots, X_{i,j-1}, \mathrm{up}(X_{i+1,j-1})]), \qquad j = 1, \dots, n - 1 - i

for n levels; the logits are read from :math:`X_{0,n-1}`. Without deep supervision.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.demo.unet import CONVOLUTIONS, SmallNetwork, UNet, make_level, upsample


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


class UNetPlusPlus(SmallNetwork):
    """A U-Net with nested, dense skip connections; arguments as of SmallNetwork."""

    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make one list per column j: its nodes, the finest first."""
        self.columns = nn.ModuleList(
            nn.ModuleList(
                make_level(dims, column * widths[level] + widths[level + 1], widths[level])
                for level in range(len(widths) - column)
            )
            for column in range(1, len(widths))
        )

    def decode(self, levels: list[Tensor]) -> Tensor:
        """Return the features of the last node of the finest row."""
        rows = [[features] for features in levels]
        for column in self.columns:
            assert isinstance(column, nn.ModuleList)
            for level, node in enumerate(column):
                # Of the column before: the row below comes later in this one.
                below = upsample(rows[level + 1][-1], rows[level][0])
                rows[level].append(node(torch.cat([*rows[level], below], dim=1)))
        return rows[0][-1]


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "unet": UNet,
    "attention_unet": AttentionUNet,
    "unet_plus_plus": UNetPlusPlus,
}
