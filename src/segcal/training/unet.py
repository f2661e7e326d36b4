"""A small U-Net in two or three dimensions (Ronneberger et al., MICCAI 2015); its parts are in `blocks`."""

from collections.abc import Sequence
from itertools import pairwise

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


class UNet(nn.Module):
    """A U-Net that maps images ``(batch, channels, *space)`` to logits ``(batch, classes, *space)``.

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
        self.up = nn.ModuleList(make_level(dims, here + below, here) for here, below in pairwise(widths))
        self.head = CONVOLUTIONS[dims](widths[0], check_num_classes(num_classes), 1)

    def forward(self, image: Tensor) -> Logits:
        """Return the logits of a batch of images."""
        check_image(image, self.dims)
        *skips, features = encode(self.down, image)
        for level, skip in zip(reversed(self.up), reversed(skips), strict=True):
            features = level(torch.cat([upsample(features, skip), skip], dim=1))
        return self.head(features)
