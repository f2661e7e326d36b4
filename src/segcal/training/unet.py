"""A small U-Net in two or three dimensions (Ronneberger et al., MICCAI 2015); its parts are in `blocks`."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.training.blocks import make_level, upsample
from segcal.training.network import SmallNetwork


class UNet(SmallNetwork):
    """A U-Net; its arguments are those of :class:`segcal.training.network.SmallNetwork`."""

    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make the levels on the way up."""
        self.up = nn.ModuleList(make_level(dims, here + below, here) for here, below in pairwise(widths))

    def decode(self, levels: list[Tensor]) -> Tensor:
        """Return the features of the finest level on the way up."""
        *skips, features = levels
        for level, skip in zip(reversed(self.up), reversed(skips), strict=True):
            features = level(torch.cat([upsample(features, skip), skip], dim=1))
        return features
