"""An ensemble of small networks for a dataset: they differ in their seed, train on crops and see whole images.

The files are those that ``segcal benchmark`` reads, under one folder for all datasets::

    OUT/networks/NAME/member_0.pt           the state of a training; one that is done is not trained again
    OUT/predictions/NAME/member_0/CASE.npy  logits (classes, *space) of a held-out case, float16
    OUT/NAME/labels/CASE.npy                its labels

Volumes are seen slice by slice. What is drawn at random comes from torch's own generator, whose state is part of a
checkpoint, so that a training that was killed ends with the weights that it would have had.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from paper.datasets.layout import Dataset, Record
from paper.loss_study.trainer import Epoch, train
from paper.loss_study.training import TrainConfig
from segcal.atomic import written
from segcal.demo.unet import UNet
from segcal.losses import make_loss
from segcal.types import IGNORED

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How the ensemble is trained: everything that decides its predictions.

    Attributes:
        members: how many networks.
        epochs: passes over the training cases, one crop of each.
        batch_size: crops in a step.
        crop: rows and columns of a crop.
        widths: features of each level of a network.
        learning_rate: at the start.
    """

    members: int = 5
    epochs: int = 100
    batch_size: int = 4
    crop: int = 256
    widths: tuple[int, ...] = (24, 48, 96, 160)
    learning_rate: float = 2e-3

    def plain(self) -> dict[str, int | float | list[int]]:
        """Return plain data, as JSON reads it back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


class Crops(Sequence[tuple[Tensor, Tensor]]):
    """A random crop of each training case, of a random slice if it is a volume; drawn anew whenever it is read."""

    def __init__(self, dataset: Dataset, records: Sequence[Record], size: int) -> None:
        self.dataset, self.records, self.size = dataset, records, size

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Tensor, Tensor]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor] | Sequence[tuple[Tensor, Tensor]]:
        """Return the image ``(channels, size, size)`` and the labels of a crop."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        image, labels = (torch.from_numpy(array) for array in self.dataset.read(self.records[index]))
        if labels.ndim == 3:
            chosen = _draw(len(labels))
            image, labels = image[:, chosen], labels[chosen]
        if self.dataset.ignore is not None:
            labels = torch.where(labels == self.dataset.ignore, IGNORED, labels)
        return self._cut(image, labels)

    def _cut(self, image: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return a crop; what lies outside a smaller image is zero and does not count."""
        missing = [max(self.size - length, 0) for length in labels.shape]
        image = nn.functional.pad(image, (0, missing[1], 0, missing[0]))
        labels = nn.functional.pad(labels, (0, missing[1], 0, missing[0]), value=IGNORED)
        place = [slice(start, start + self.size) for start in (_draw(n - self.size + 1) for n in labels.shape)]
        return image[:, *place].contiguous(), labels[tuple(place)].contiguous()


def train_member(
    dataset: Dataset, records: Sequence[Record], settings: Settings, member: int, out: Path, device: str, say: Say
) -> UNet:
    """Train one network, or go on with it, or read it if it is done."""
    torch.manual_seed(member)
    network = UNet(dataset.channels, len(dataset.class_names), widths=settings.widths)
    config = TrainConfig(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        flips=dataset.flips,
        seed=member,
        device=device,
    )

    def tell(epoch: Epoch) -> None:
        say(f"member {member}: epoch {epoch.number} of {settings.epochs}, loss {epoch.loss:.3f}")

    train(
        network,
        make_loss("ce_dice"),
        Crops(dataset, [record for record in records if record.part == "train"], settings.crop),
        config,
        checkpoint=out / "networks" / dataset.name / f"member_{member}.pt",
        on_epoch=tell,
    )
    return network


def predict_member(
    dataset: Dataset, records: Sequence[Record], network: UNet, member: int, out: Path, device: str, say: Say
) -> None:
    """Write the logits of the held-out cases that have none yet, and their labels."""
    folder, truth = out / "predictions" / dataset.name / f"member_{member}", out / dataset.name / "labels"
    held_out = [record for record in records if record.part == "held_out"]
    for number, record in enumerate(held_out):
        targets = folder / f"{record.id}.npy", truth / f"{record.id}.npy"
        if all(target.is_file() for target in targets):
            continue
        image, labels = dataset.read(record)
        save(targets[0], predict(network, torch.from_numpy(image), device).half().numpy())
        save(targets[1], labels.astype(np.uint8))
        say(f"member {member}: predicted {number + 1} of {len(held_out)}")


@torch.inference_mode()
def predict(network: UNet, image: Tensor, device: str) -> Tensor:
    """Return logits ``(classes, *space)`` of a picture ``(channels, H, W)`` or of a volume, slice by slice."""
    slices = image[:, None] if image.ndim == 3 else image
    network.to(device).eval()
    found = torch.stack([network(slices[None, :, z].to(device))[0].cpu() for z in range(slices.shape[1])], dim=1)
    return found[:, 0] if image.ndim == 3 else found


def save(path: Path, array: np.ndarray) -> None:
    """Write an array so that a kill leaves the whole file or none."""
    with written(path) as beside, beside.open("wb") as file:
        np.save(file, array)


def _draw(count: int) -> int:
    return int(torch.randint(count, ()))
