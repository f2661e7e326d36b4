r"""A small UNet++ (Zhou et al., IEEE TMI 2020): the gap between encoder and decoder is filled with nodes.

Node :math:`X_{i,0}` is level i of the encoder, and

.. math:: X_{i,j} = L_{ij}([X_{i,0}, \dots, X_{i,j-1}, \mathrm{up}(X_{i+1,j-1})]), \qquad j = 1, \dots, n - 1 - i

for n levels; the logits are read from :math:`X_{0,n-1}`. Without deep supervision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from segcal.checks import check_num_classes
from segcal.training.blocks import (
    CONVOLUTIONS,
    WIDTHS,
    check_image,
    check_sizes,
    encode,
    make_encoder,
    make_level,
    upsample,
)
from segcal.types import Logits


class UNetPlusPlus(nn.Module):
    """A U-Net with nested, dense skip connections.

    Args:
        channels: of the image.
        num_classes: C.
        dims: 2 or 3.
        widths: features of each level, the finest first.
    """

    def __init__(self, channels: int, num_classes: int, dims: int = 2, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        check_sizes(dims, widths)
        self.dims = dims
        self.down = make_encoder(dims, channels, widths)
        # One list a column j: its nodes, the finest first.
        self.columns = nn.ModuleList(
            nn.ModuleList(
                make_level(dims, column * widths[level] + widths[level + 1], widths[level])
                for level in range(len(widths) - column)
            )
            for column in range(1, len(widths))
        )
        self.head = CONVOLUTIONS[dims](widths[0], check_num_classes(num_classes), 1)

    def forward(self, image: Tensor) -> Logits:
        """Return the logits of a batch of images."""
        check_image(image, self.dims)
        rows = [[features] for features in encode(self.down, image)]
        for column in self.columns:
            assert isinstance(column, nn.ModuleList)
            for level, node in enumerate(column):
                below = upsample(
                    rows[level + 1][-1], rows[level][0]
                )  # of the column before: it comes later in this one
                rows[level].append(node(torch.cat([*rows[level], below], dim=1)))
        return self.head(rows[0][-1])
