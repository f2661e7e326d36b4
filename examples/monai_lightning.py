"""Train a MONAI network with a calibrating loss in Lightning, then calibrate it afterwards.

    python examples/monai_lightning.py [--loss nacl] [--epochs 20]

Needs monai and pytorch-lightning. The only line that segcal changes in such a training is the loss.
"""

import argparse

import pytorch_lightning as lightning
import torch
from monai.networks.nets import UNet
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import segcal


class Segmenter(lightning.LightningModule):
    """A MONAI U-Net.

    Args:
        loss: a name of segcal.LOSSES.
    """

    def __init__(self, loss: str = "nacl") -> None:
        super().__init__()
        self.network = UNet(spatial_dims=2, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2))
        self.loss = segcal.make_loss(loss, ignore_index=255)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        return self.network(images)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        """Return the loss of a batch: MONAI's labels have a channel axis, segcal's do not."""
        images, labels = batch
        return self.loss(self(images), labels[:, 0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def discs(count: int, seed: int, size: int = 48) -> TensorDataset:
    """Return noisy pictures of a disc in a ring, with labels of which a corner is void (255)."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(size, dtype=torch.float32)
    centre = size / 4 + size / 2 * torch.rand(count, 2, 1, 1, generator=generator)
    distance = ((place[:, None] - centre[:, 0]) ** 2 + (place[None] - centre[:, 1]) ** 2).sqrt()
    labels = 2 - (distance > size / 8).long() - (distance > size / 4).long()
    images = labels.float() + torch.randn(labels.shape, generator=generator)
    labels[:, : size // 8, : size // 8] = 255
    return TensorDataset(images[:, None], labels[:, None])


def as_cases(model: Segmenter, data: TensorDataset) -> segcal.ArrayCases:
    """Return predictions and labels as segcal reads them."""
    images, labels = data.tensors
    with torch.no_grad():
        logits = model.eval()(images)
    return segcal.ArrayCases(logits=list(logits), labels=list(labels[:, 0]), ignore=255)


def main(loss: str, epochs: int) -> object:
    lightning.seed_everything(0, verbose=False)
    model = Segmenter(loss)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, DataLoader(discs(32, 0), batch_size=8))
    fitted = segcal.fit("ts", as_cases(model, discs(8, 1)))
    return segcal.evaluate(as_cases(model, discs(8, 2)), fitted.calibrator, metrics=["nll", "dice", "ece"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", default="nacl", choices=list(segcal.LOSSES))
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    print(main(options.loss, options.epochs))
