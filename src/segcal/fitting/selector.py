r"""Training of the selector of selective scaling: which voxels are mispredicted?

The published recipe: cross-entropy, AdamW with a learning rate of 1e-3 and a weight decay of 1e-6, a batch
normalisation before each ReLU, 40 epochs (with :meth:`FitConfig.paper`; fewer otherwise). A misprediction counts
1 + `repeats` times, as if it were appended to its batch `repeats` times; the selector then flags a voxel whose
probability of being wrong is above :math:`1 / (2 + \text{repeats})`. Ignored voxels never get here: a fit sees labelled
ones only. With validation voxels the weights of the best epoch are kept, without them those of the last.

After training the normalisations are folded into the layers. All random choices come from the seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.calibrators.selector import Selector
from segcal.fitting.config import FitConfig

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-6
EPOCHS = {"paper": 40, "exact": 12}
# Few voxels make short epochs; there are more of them then.
LEAST_STEPS = 1000
# Voxels of one step: enough steps an epoch for few voxels, large enough to be fast for many.
STEPS, SMALLEST_BATCH, LARGEST_BATCH = 64, 256, 1 << 12
WRONG, RIGHT = 0, 1


@dataclass(frozen=True)
class Examples:
    """What a selector learns from.

    Attributes:
        features: ``(n, C)`` float32, what it sees.
        right: ``(n,)`` int64: 0 for a misprediction, 1 for a right prediction.
        weight: ``(n,)`` float32, how many voxels it stands for.
    """

    features: Tensor
    right: Tensor
    weight: Tensor

    def only_one_kind(self) -> bool:
        """Whether there is nothing to tell apart."""
        return self.right.numel() == 0 or int(self.right.min()) == int(self.right.max())


def train_selector(
    selector: Selector,
    examples: Examples,
    validation: Examples | None,
    repeats: float,
    config: FitConfig,
    report: Callable[[str], None],
) -> tuple[float, ...]:
    """Train a selector in place; return its validation loss (without validation, its training loss) by epoch."""
    if examples.only_one_kind():
        selector.set_constant(flagged=examples.right.numel() > 0 and int(examples.right[0]) == WRONG)
        return ()
    network = _Network(selector.widths, config.seed).to(examples.features.device)
    rate = LEARNING_RATE if config.learning_rate is None else config.learning_rate
    decay = WEIGHT_DECAY if config.weight_decay is None else config.weight_decay
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    generator = torch.Generator().manual_seed(config.seed)
    curve: list[float] = []
    best: list[tuple[Tensor, Tensor]] = []
    steps = math.ceil(examples.right.numel() / _batch(examples))
    epochs = max(EPOCHS[config.method], math.ceil(LEAST_STEPS / steps))
    for epoch in range(epochs):
        trained = _epoch(network, optimiser, examples, repeats, generator)
        curve.append(trained if validation is None else _loss_of(network, validation, repeats))
        if validation is None or curve[-1] <= min(curve):
            best = network.folded()
        report(f"selector, epoch {epoch + 1} of {epochs}: loss {curve[-1]:.5f}")
    selector.set_layers(best)
    return tuple(curve)


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


def _epoch(
    network: _Network, optimiser: torch.optim.Optimizer, examples: Examples, repeats: float, generator: torch.Generator
) -> float:
    network.train()
    scale = _factors(examples, repeats).mean()
    order = torch.randperm(examples.right.numel(), generator=generator).to(examples.right.device)
    losses = []
    for index in order.split(_batch(examples)):
        if index.numel() < 2:  # a normalisation needs two
            continue
        part = Examples(examples.features[index], examples.right[index], examples.weight[index])
        optimiser.zero_grad()
        loss = (_factors(part, repeats) * _entropies(network, part)).mean() / scale
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses) / max(len(losses), 1)


@torch.no_grad()
def _loss_of(network: _Network, examples: Examples, repeats: float) -> float:
    network.eval()
    factors = _factors(examples, repeats)
    return float((factors * _entropies(network, examples)).sum() / factors.sum())


def _batch(examples: Examples) -> int:
    return min(max(examples.right.numel() // STEPS, SMALLEST_BATCH), LARGEST_BATCH)


def _factors(examples: Examples, repeats: float) -> Tensor:
    return examples.weight * torch.where(examples.right == WRONG, 1 + repeats, 1.0)


def _entropies(network: _Network, examples: Examples) -> Tensor:
    return nn.functional.cross_entropy(network(examples.features), examples.right, reduction="none")
