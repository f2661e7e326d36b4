r"""A small UNet++ (Zhou et al., IEEE TMI 2020): the gap between encoder and decoder is filled with nodes.

Node :math:`X_{i,0}` is level i of the encoder, and

.. math:: X_{i,j} = L_{ij}([X_{i,0}, \dots, X_{i,j-1}, \mathrm{up}(X_{i+1,j-1})]), \qquad j = 1, \dots, n - 1 - i

for n levels; the logits are read from :math:`X_{0,n-1}`. Without deep supervision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from segcal.training.blocks import make_level, upsample
from segcal.training.network import SmallNetwork


class UNetPlusPlus(SmallNetwork):
    """A U-Net with nested, dense skip connections; arguments as of SmallNetwork."""

    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make one list a column j: its nodes, the finest first."""
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
