"""A small U-Net in two or three dimensions (Ronneberger et al., MICCAI 2015): the network of the shipped ensembles.

A level has two 3-wide convolutions, each with batch normalisation and a leaky rectifier. Levels are joined by max
pooling on the way down and nearest-neighbour upsampling on the way up. Any size of space works: upsampling goes to the
size of the finer level. The input needs no standardisation, because batch normalisation follows the first convolution.

The shipped networks are five per task, float16 in one file of weights, which describes itself. Its metadata holds the
arguments of :class:`UNet`, and its tensors are named ``<member>.<parameter>``. Networks compute in float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from segcal.checks import check_num_classes
from segcal.demo.tasks import get_task
from segcal.documents import parse_json
from segcal.errors import ArtifactError, InputError
from segcal.types import Logits

CONVOLUTIONS: dict[int, type[nn.Module]] = {2: nn.Conv2d, 3: nn.Conv3d}
NORMS: dict[int, type[nn.Module]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {2: functional.max_pool2d, 3: functional.max_pool3d}
# Features of each level of a network, the finest first.
WIDTHS = (16, 24, 48, 72)
WEIGHTS = Path(__file__).parent / "weights"
MEMBERS = 5


class SmallNetwork(nn.Module, ABC):
    """An encoder, something of a subclass's own, and one convolution that reads logits.

    Maps images ``(batch, channels, *space)`` to logits ``(batch, classes, *space)``.

    Args:
        channels: of the image.
        num_classes: C.
        dims: 2 or 3.
        widths: features of each level, the finest first.
    """

    def __init__(self, channels: int, num_classes: int, dims: int = 2, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        if dims not in CONVOLUTIONS:
            raise InputError(f"dims is {dims!r}, but 2 or 3 is needed. Count the axes of space.")
        if not widths or min(widths) < 1:
            raise InputError(f"widths is {tuple(widths)}, but positive numbers are needed. Give one a level.")
        self.dims = dims
        inputs = [channels, *widths[:-1]]
        self.down = nn.ModuleList(make_level(dims, before, width) for before, width in zip(inputs, widths, strict=True))
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
        if image.ndim != self.dims + 2:
            raise InputError(
                f"image has shape {tuple(image.shape)}, but this network needs (batch, channels, *space) with "
                f"{self.dims} axes of space. Add the batch axis with image[None]."
            )
        levels: list[Tensor] = []
        for level in self.down:
            levels.append(level(POOLS[self.dims](levels[-1], 2) if levels else image))
        return self.head(self.decode(levels))


class UNet(SmallNetwork):
    """A U-Net; arguments as of :class:`SmallNetwork`."""

    def build(self, dims: int, widths: Sequence[int]) -> None:
        """Make the levels on the way up."""
        self.up = nn.ModuleList(make_level(dims, here + below, here) for here, below in pairwise(widths))

    def decode(self, levels: list[Tensor]) -> Tensor:
        """Return the features of the finest level on the way up."""
        *skips, features = levels
        for level, skip in zip(reversed(self.up), reversed(skips), strict=True):
            features = level(torch.cat([upsample(features, skip), skip], dim=1))
        return features


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


def upsample(features: Tensor, like: Tensor) -> Tensor:
    """Return the features at the size of a finer level."""
    return functional.interpolate(features, size=like.shape[2:], mode="nearest")


def load_member(task: str, member: int, folder: Path = WEIGHTS) -> UNet:
    """Return one trained network of a task, ready to predict on the CPU."""
    path = folder / f"{get_task(task).name}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            facts = parse_json(file.metadata()["network"])
            members = int(file.metadata()["members"])
            if not 0 <= member < members:
                raise InputError(
                    f"member is {member}, but the ensemble of {task!r} has members 0 to {members - 1}. "
                    "Choose one of these."
                )
            own = (key for key in file.keys() if key.startswith(f"{member}."))  # noqa: SIM118
            weights = {key.partition(".")[2]: file.get_tensor(key) for key in own}
    except InputError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is not readable as weights ({error}). Install the package again.") from None
    network = UNet(**facts)
    wide = {key: value.float() if value.is_floating_point() else value for key, value in weights.items()}
    network.load_state_dict(wide)
    return fast_layout(network).eval()


def fast_layout(network: UNet) -> UNet:
    """Return the network with its 2-D weights stored channels last: the same function, twice as fast on a CPU."""
    return network.to(memory_format=torch.channels_last) if network.dims == 2 else network  # type: ignore[call-overload]


def load_ensemble(task: str, members: int = MEMBERS, folder: Path = WEIGHTS) -> list[UNet]:
    """Return the first `members` networks of a task."""
    return [load_member(task, member, folder) for member in range(members)]


@torch.inference_mode()
def predict(network: UNet, image: NDArray[np.float32]) -> Logits:
    """Return the float32 logits ``(classes, *space)`` of one image ``(channels, *space)``."""
    batch = torch.from_numpy(image)[None]
    if network.dims == 2:
        batch = batch.to(memory_format=torch.channels_last)
    return network(batch)[0].contiguous()
