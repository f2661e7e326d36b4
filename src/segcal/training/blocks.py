"""What the small networks are built of, in two or three dimensions.

A level has two 3-wide convolutions, each with batch normalisation and a leaky rectifier. Levels are joined by max
pooling on the way down and nearest-neighbour upsampling on the way up. Any size of space works: upsampling goes to the
size of the finer level. The input needs no standardisation, because batch normalisation follows the first convolution.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from segcal.errors import InputError

CONVOLUTIONS: dict[int, type[nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}
NORMS: dict[int, type[nn.Module]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {2: functional.max_pool2d, 3: functional.max_pool3d}
# Features of each level of a network, the finest first.
WIDTHS = (16, 24, 48, 72)


def make_level(dims: int, inputs: int, outputs: int) -> nn.Sequential:
    """Return the two convolutions of a level."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [
            CONVOLUTIONS[dims](width, outputs, 3, padding=1, bias=False),
            NORMS[dims](outputs),
            nn.LeakyReLU(0.01, inplace=True),
        ]
    return nn.Sequential(*layers)


def make_encoder(dims: int, channels: int, widths: Sequence[int]) -> nn.ModuleList:
    """Return the levels on the way down."""
    inputs = [channels, *widths[:-1]]
    return nn.ModuleList(make_level(dims, before, width) for before, width in zip(inputs, widths, strict=True))


def encode(levels: nn.ModuleList, image: Tensor) -> list[Tensor]:
    """Return the features of every level, the finest first."""
    found: list[Tensor] = []
    for level in levels:
        found.append(level(POOLS[image.ndim - 2](found[-1], 2) if found else image))
    return found


def upsample(features: Tensor, like: Tensor) -> Tensor:
    """Return the features at the size of a finer level."""
    return functional.interpolate(features, size=like.shape[2:], mode="nearest")


def check_sizes(dims: int, widths: Sequence[int]) -> None:
    """Refuse networks that cannot be built."""
    if dims not in CONVOLUTIONS:
        raise InputError(f"dims is {dims!r}, but 2 or 3 is needed. Count the axes of space.")
    if not widths or min(widths) < 1:
        raise InputError(f"widths is {tuple(widths)}, but positive numbers are needed. Give one a level.")


def check_image(image: Tensor, dims: int) -> None:
    """Refuse an image that a network of so many dimensions cannot take."""
    if image.ndim != dims + 2:
        raise InputError(
            f"image has shape {tuple(image.shape)}, but this network needs (batch, channels, *space) with "
            f"{dims} axes of space. Add the batch axis with image[None]."
        )
