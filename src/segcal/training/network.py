"""What the small networks have in common: an encoder, something of their own, and one convolution that reads logits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from segcal.checks import check_num_classes
from segcal.training.blocks import CONVOLUTIONS, WIDTHS, check_image, check_sizes, encode, make_encoder
from segcal.types import Logits


class SmallNetwork(nn.Module, ABC):
    """Maps images ``(batch, channels, *space)`` to logits ``(batch, classes, *space)``.

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
        self.build(dims, widths)
        self.head = CONVOLUTIONS[dims](widths[0], check_num_classes(num_classes), 1)

    @abstractmethod
    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make the modules between encoder and head."""

    @abstractmethod
    def decode(self, levels: list[Tensor]) -> Tensor:
        """Return features at full size from those of the encoder's levels, the finest first."""

    def forward(self, image: Tensor) -> Logits:
        """Return the logits of a batch of images."""
        check_image(image, self.dims)
        return self.head(self.decode(encode(self.down, image)))
