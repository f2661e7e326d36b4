"""Training one network of the study, and watching its logits grow."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paper.loss_study.backbones import BACKBONES
from paper.loss_study.data import Stored
from paper.loss_study.ensembles import RECIPES
from paper.loss_study.plan import CONFIGS, VARIANTS, Unit
from paper.loss_study.trainer import Epoch, Steps, train_steps
from segcal.atomic import write_text
from segcal.demo.tasks import get_task
from segcal.documents import parse_json
from segcal.losses import make_loss

# Fig. 5: bins of the largest logit.
LOGIT_EDGES = np.linspace(-5.0, 25.0, 61)
WATCHED_CASES = 4
# Histograms of the largest logit, by epoch.
Histograms = dict[int, list[int]]


@dataclass(frozen=True)
class Effort:
    """How much is put into one training.

    Attributes:
        device: where to train; on a CUDA device in mixed precision.
        epochs: at most so many, or None for the study's own number.
        graph: replay recorded steps; on a CUDA device only.
    """

    device: str = "cpu"
    epochs: int | None = None
    graph: bool = False


@dataclass(frozen=True)
class Data:
    """The data of one training.

    Attributes:
        cases: to train on.
        validation: cases that choose the best epoch.
        checkpoint: a file to go on from, or None; the histograms so far stand beside it.
    """

    cases: Sequence[Stored]
    validation: Sequence[Stored]
    checkpoint: Path | None = None

    def histograms(self) -> Histograms:
        """Return what an interrupted training has seen of its logits."""
        path = None if self.checkpoint is None else self.checkpoint.with_suffix(".json")
        if path is None or not path.exists():
            return {}
        return {int(epoch): counts for epoch, counts in parse_json(path.read_text(encoding="utf-8")).items()}

    def keep(self, histograms: Histograms) -> None:
        """Write them down for a training that goes on."""
        if self.checkpoint is not None:
            write_text(self.checkpoint.with_suffix(".json"), json.dumps(histograms))

    def forget(self) -> None:
        """Remove the files of a training that is done."""
        for suffix in (".pt", ".json") if self.checkpoint is not None else ():
            self.checkpoint.with_suffix(suffix).unlink(missing_ok=True)  # type: ignore[union-attr]


def unit_steps(unit: Unit, data: Data, effort: Effort, histograms: Histograms) -> Steps:
    """Train a network step by step; histograms of its largest logit are put where the caller wants them."""
    config = CONFIGS[unit.task]
    epochs = min(config.epochs, effort.epochs or config.epochs)
    on_gpu = torch.device(effort.device).type == "cuda"
    config = replace(config, epochs=epochs, device=effort.device, amp=on_gpu, graph=effort.graph, seed=unit.seed)
    torch.manual_seed(unit.seed)
    network = make_network(unit).to(effort.device)
    kept = [on_device(case, effort.device) for case in data.cases[: max(len(data.cases) * unit.share // 100, 1)]]
    watched = [on_device(case, effort.device) for case in data.validation]

    def watch(epoch: Epoch) -> None:
        if unit.main and (epoch.dice is not None or epoch.number == 1):
            histograms[epoch.number] = logit_histogram(network, [image for image, _ in watched[:WATCHED_CASES]])
            data.keep(histograms)

    name, options = VARIANTS[unit.variant]
    return (yield from train_steps(network, make_loss(name, **options), kept, config, watched, data.checkpoint, watch))


def make_network(unit: Unit) -> nn.Module:
    """Return an untrained network of a unit, with weights stored channels last, which is faster."""
    task = get_task(unit.task)
    facts: dict[str, Any] = {"channels": task.channels, "num_classes": task.num_classes, "dims": len(task.space)}
    network = BACKBONES[unit.backbone](widths=RECIPES[unit.task].widths, **facts)
    layout = torch.channels_last if len(task.space) == 2 else torch.channels_last_3d
    return network.to(memory_format=layout)  # type: ignore[call-overload]


def on_device(case: Stored, device: str) -> tuple[Tensor, Tensor]:
    """Return image and labels of a case on a device."""
    return torch.from_numpy(case.image).to(device), torch.from_numpy(case.labels).to(device)


@torch.no_grad()
def logit_histogram(network: nn.Module, images: Sequence[Tensor]) -> list[int]:
    """Return how many voxels have their largest logit in each bin; what lies outside is in the outermost bins."""
    training = network.training
    network.eval()
    largest = [network(image[None])[0].amax(0).flatten().float().cpu().numpy() for image in images]
    network.train(training)
    values = np.clip(np.concatenate(largest), LOGIT_EDGES[0], LOGIT_EDGES[-1])
    return np.histogram(values, LOGIT_EDGES)[0].tolist()
