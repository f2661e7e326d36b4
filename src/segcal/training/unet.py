"""A small U-Net in two or three dimensions.

Each level has two 3-wide convolutions with batch normalisation and a leaky rectifier; levels are joined by max pooling
on the way down and nearest-neighbour upsampling, followed by the next level's convolutions, on the way up. Any size of
space works: upsampling goes to the size of the skip connection. The input needs no standardisation, because batch
normalisation follows the first convolution.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from segcal.checks import check_num_classes
from segcal.errors import InputError
from segcal.types import Logits

CONVOLUTIONS: dict[int, type[nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}
NORMS: dict[int, type[nn.Module]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {2: functional.max_pool2d, 3: functional.max_pool3d}


class UNet(nn.Module):
    """A U-Net that maps images ``(batch, channels, *space)`` to logits ``(batch, classes, *space)``.

    Args:
        channels: of the image.
        num_classes: C.
        dims: 2 or 3.
        widths: features of each level, the finest first.
    """

    def __init__(
        self, channels: int, num_classes: int, dims: int = 2, widths: Sequence[int] = (16, 24, 48, 72)
    ) -> None:
        super().__init__()
        if dims not in CONVOLUTIONS:
            raise InputError(f"dims is {dims!r}, but 2 or 3 is needed. Count the axes of space.")
        if not widths or min(widths) < 1:
            raise InputError(f"widths is {tuple(widths)}, but positive numbers are needed. Give one a level.")
        self.dims = dims
        inputs = [channels, *widths[:-1]]
        self.down = nn.ModuleList(_level(dims, before, width) for before, width in zip(inputs, widths, strict=True))
        self.up = nn.ModuleList(_level(dims, here + below, here) for here, below in pairwise(widths))
        self.head = CONVOLUTIONS[dims](widths[0], check_num_classes(num_classes), 1)

    def forward(self, image: Tensor) -> Logits:
        """Return the logits of a batch of images."""
        if image.ndim != self.dims + 2:
            raise InputError(
                f"image has shape {tuple(image.shape)}, but this network needs (batch, channels, *space) with "
                f"{self.dims} axes of space. Add the batch axis with image[None]."
            )
        skips = []
        features = image
        for number, level in enumerate(self.down):
            features = level(POOLS[self.dims](features, 2) if number else features)
            skips.append(features)
        for level, skip in zip(reversed(self.up), reversed(skips[:-1]), strict=True):
            features = functional.interpolate(features, size=skip.shape[2:], mode="nearest")
            features = level(torch.cat([features, skip], dim=1))
        return self.head(features)


def _level(dims: int, inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [
            CONVOLUTIONS[dims](width, outputs, 3, padding=1, bias=False),
            NORMS[dims](outputs),
            nn.LeakyReLU(0.01, inplace=True),
        ]
    return nn.Sequential(*layers)
