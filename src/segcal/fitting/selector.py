r"""Training of the selector of selective scaling: which voxels are mispredicted?

The published recipe: cross-entropy, AdamW with a learning rate of 1e-3 and a weight decay of 1e-6, a batch
normalisation before each ReLU, 40 epochs. A misprediction counts 1 + `repeats` times, as if it were appended to its
batch `repeats` times. The selector then flags a voxel whose probability of being wrong is above
:math:`1 / (2 + \text{repeats})`. Ignored voxels never get here: a fit sees labelled ones only. With validation voxels
the weights of the best epoch are kept, without them those of the last.

That is :meth:`FitConfig.paper`. With few classes the network is a few units wide, and its end depends on its start. Of
ten starts on a binary task, five never flagged a voxel and three more ended with a much higher loss. So several starts
are trained for a short while and the best goes on. The learning rate is larger and falls to zero along a cosine.

After training the normalisations are folded into the layers. All random choices come from the seed.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.calibrators.selective import Selector
from segcal.fitting.config import FitConfig
from segcal.fitting.progress import Report

WEIGHT_DECAY = 1e-6
EPOCHS = {"paper": 40, "exact": 12}
LEARNING_RATES = {"paper": 1e-3, "exact": 1e-2}
# How many starts, divided by the number of classes, and at least how many: narrow networks fail more often.
STARTS, LEAST_STARTS = 48, 4
# Steps of each start before the best is chosen.
TRIAL_STEPS = 128
# Few voxels make short epochs; there are more of them then.
LEAST_STEPS = 1000
# Voxels of one step: enough steps an epoch for few voxels, large enough to be fast for many.
STEPS, SMALLEST_BATCH, LARGEST_BATCH = 64, 256, 1 << 12
WRONG, RIGHT = 0, 1


@dataclass(frozen=True)
class Examples:
    """Voxels that a selector learns from: its input ``(n, C)``, 0 for a misprediction and 1 otherwise, weights."""

    features: Tensor
    right: Tensor
    weight: Tensor

    def repeated(self, repeats: float) -> "Examples":
        """Return the voxels with mispredictions that count 1 + `repeats` times."""
        return replace(self, weight=self.weight * torch.where(self.right == WRONG, 1 + repeats, 1.0))

    def only_one_kind(self) -> bool:
        """Whether there is nothing to tell apart."""
        return self.right.numel() == 0 or int(self.right.min()) == int(self.right.max())


def train_selector(
    selector: Selector,
    examples: Examples,
    validation: Examples | None,
    repeats: float,
    config: FitConfig,
    report: Report,
) -> tuple[float, ...]:
    """Train a selector in place; return its validation loss (without validation, its training loss) by epoch."""
    if examples.only_one_kind():
        selector.set_constant(flagged=examples.right.numel() > 0 and int(examples.right[0]) == WRONG)
        return ()
    examples, validation = examples.repeated(repeats), validation and validation.repeated(repeats)
    steps = math.ceil(examples.right.numel() / _batch(examples))
    epochs = max(EPOCHS[config.method], math.ceil(min(LEAST_STEPS, config.max_steps) / steps))
    starts = [
        _Run(selector.widths, examples, validation, config, epochs, start)
        for start in range(1 if config.method == "paper" else max(LEAST_STARTS, STARTS // selector.widths[0]))
    ]
    for number, run in enumerate(starts if len(starts) > 1 else []):
        run.train(min(epochs, math.ceil(min(TRIAL_STEPS, config.max_steps) / steps)))
        report(f"selector, start {number + 1} of {len(starts)}: loss {run.curve[-1]:.5f}")
    best = min(starts, key=lambda run: run.curve[-1]) if len(starts) > 1 else starts[0]
    while len(best.curve) < epochs:
        best.train(1)
        report(f"selector, epoch {len(best.curve)} of {epochs}: loss {best.curve[-1]:.5f}")
    selector.set_layers(best.kept)
    return tuple(best.curve)


class _Run:
    """One start of the training, which can be continued.

    Attributes:
        curve: the loss after each epoch: of the validation examples or, without them, of training.
        kept: the layers of the best epoch or, without validation examples, of the last.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        examples: Examples,
        validation: Examples | None,
        config: FitConfig,
        epochs: int,
        start: int,
    ) -> None:
        self._examples, self._validation = examples, validation
        self._network = _Network(sizes, config.seed + start).to(examples.features.device)
        self._falls, self._epochs = config.method != "paper", epochs
        given, decay = config.learning_rate, config.weight_decay
        self._rate = LEARNING_RATES[config.method] if given is None else given
        self._optimiser = torch.optim.AdamW(
            self._network.parameters(), lr=self._rate, weight_decay=WEIGHT_DECAY if decay is None else decay
        )
        self._generator = torch.Generator().manual_seed(config.seed + start)
        self.curve: list[float] = []
        self.kept: list[tuple[Tensor, Tensor]] = []

    def train(self, epochs: int) -> None:
        """Train for some more epochs."""
        for _ in range(epochs):
            if self._falls:
                done = len(self.curve) / self._epochs
                for group in self._optimiser.param_groups:
                    group["lr"] = self._rate * 0.5 * (1 + math.cos(math.pi * done))
            trained, validation = self._epoch(), self._validation
            self.curve.append(trained if validation is None else _loss_of(self._network, validation))
            if validation is None or self.curve[-1] <= min(self.curve):
                self.kept = self._network.folded()

    def _epoch(self) -> float:
        """Make a step on every batch; return the mean loss."""
        self._network.train()
        features, right, weight = self._examples.features, self._examples.right, self._examples.weight
        scale = weight.mean()
        order = torch.randperm(right.numel(), generator=self._generator).to(right.device)
        losses = []
        for index in order.split(_batch(self._examples)):
            if index.numel() < 2:  # a normalisation needs two
                continue
            self._optimiser.zero_grad()
            entropies = _entropies(self._network, features[index], right[index])
            loss = (weight[index] * entropies).mean() / scale
            loss.backward()
            self._optimiser.step()
            losses.append(float(loss.detach()))
        return sum(losses) / max(len(losses), 1)


class _Network(nn.Module):
    """The selector as it is trained: linear layers with batch normalisation and ReLU between them."""

    def __init__(self, sizes: tuple[int, ...], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Without torch's own start, which would take from the global generator.
        layers = [nn.utils.skip_init(nn.Linear, before, after) for before, after in pairwise(sizes)]
        with torch.no_grad():
            for layer in layers:
                bound = 1 / math.sqrt(layer.in_features)
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
            nn.init.eye_(layers[0].weight)
            nn.init.zeros_(layers[0].bias)
        hidden = [(layer, nn.BatchNorm1d(layer.out_features)) for layer in layers[:-1]]
        self.stack = nn.Sequential(*(part for pair in hidden for part in (*pair, nn.ReLU())), layers[-1])
        self._hidden, self._last = hidden, [layers[-1]]  # in lists: not registered a second time

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.stack(values)
        return result

    @torch.no_grad()
    def folded(self) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases that do the same without normalisation."""
        layers = []
        for layer, norm in self._hidden:
            assert norm.running_var is not None
            assert norm.running_mean is not None
            scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
            bias = (layer.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
            layers.append((layer.weight.double() * scale[:, None], bias))
        layers += [(layer.weight.double().clone(), layer.bias.double().clone()) for layer in self._last]
        return layers


@torch.no_grad()
def _loss_of(network: _Network, examples: Examples) -> float:
    network.eval()
    entropies = _entropies(network, examples.features, examples.right)
    return float((examples.weight * entropies).sum() / examples.weight.sum())


def _batch(examples: Examples) -> int:
    return min(max(examples.right.numel() // STEPS, SMALLEST_BATCH), LARGEST_BATCH)


def _entropies(network: _Network, features: Tensor, right: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(features), right, reduction="none")
