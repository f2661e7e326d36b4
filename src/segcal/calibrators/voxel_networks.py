r"""Calibrators that learn a function of single voxels by a small network: linear layers with ReLU between them.

The last layer starts at zero, so that the output of a new network is zero, whatever its input. The layers before it
start at random numbers of variance 2 / inputs (He et al.), without which they could not learn. Multiplying a hidden
unit's inputs and dividing its outputs by one positive number changes nothing. Of the parameters, all but one for every
hidden unit are identifiable.

**Parameterised temperature scaling (PTS)**: a temperature for every voxel, from its own prediction.

.. math:: q = S(z / T), \qquad T = \epsilon + \log\left(1 + e^{f(\mathrm{sort}_k \log S(z)) + c_0}\right)

where f is a small network that sees the k largest log-probabilities of the voxel in descending order, whatever their
classes. Log-probabilities do not see an offset of the logits: translation-invariant. One positive number divides all
classes: every order is kept. c_0 and the form of T are those of :mod:`segcal.calibrators.local_temperature`: a new
calibrator has T = 1 exactly.

Departures from the paper: it takes the absolute value of the network's output, which can reach zero, and logits. Its
loss is the squared error of probabilities, ours the likelihood. Two hidden layers of 5 and k = 10 are the paper's.

**Intra order-preserving network (IOP)**: every gap between neighbouring classes is scaled by a learned factor.

Sort the logits of a voxel, :math:`y_1 \ge \dots \ge y_C`, and take the gaps :math:`u_k = y_k - y_{k+1} \ge 0`. A
network f sees the gaps and gives one positive factor for each,

.. math:: y'_k - y'_{k+1} = m_k u_k, \qquad m = \epsilon + \log\left(1 + e^{f(u) + c_0}\right) > 0 .

A gap stays a gap and a tie a tie, so every order is kept, strictly where factor times gap does not underflow. The
scores are sums of non-negative drops below the winner, so this holds in floating point. Gaps do not see an offset:
translation-invariant. One network serves all classes: it sees sizes and not names ("order-invariant" in the paper).
In a new calibrator all factors are 1.

Departures from the released code: the network sees gaps instead of logits, which makes it translation-invariant. Its
default size is 32, 32 instead of 150, 150, because it runs on every voxel.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from segcal.calibrators.affine import scores_from_outputs
from segcal.calibrators.base import Calibrator
from segcal.calibrators.local_temperature import before_positive, positive
from segcal.checks import check_count
from segcal.errors import InputError
from segcal.kernels.plan import FusedPlan, on_host
from segcal.numerics import canonical_logits, descending
from segcal.types import Context, Logits


class Perceptron(nn.Module):
    """Maps ``(voxels, inputs)`` to ``(voxels, outputs)``.

    Args:
        inputs: how many numbers it sees.
        hidden: the sizes of the hidden layers.
        outputs: how many numbers it gives.
        seed: of the random start.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, seed: int) -> None:
        super().__init__()
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in hidden):
            raise InputError(
                f"hidden is {hidden!r}, but a list of layer sizes of at least 1 is needed. Use [32, 32], for example."
            )
        self.redundant = sum(hidden)  # one scale a hidden unit
        generator = torch.Generator().manual_seed(seed)
        sizes = [inputs, *hidden, outputs]
        weights, biases = [], []
        for before, after in pairwise(sizes):
            weight = math.sqrt(2 / before) * torch.randn(after, before, generator=generator, dtype=torch.float64)
            weights.append(nn.Parameter(weight))
            biases.append(nn.Parameter(torch.zeros(after, dtype=torch.float64)))
        nn.init.zeros_(weights[-1])
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)

    def forward(self, values: Tensor) -> Tensor:
        """Return the output of the network."""
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = nn.functional.linear(values, weight.to(values.dtype), bias.to(values.dtype))
            if number < last:
                values = nn.functional.relu(values)
        return values

    @torch.no_grad()
    def set_constant(self, value: float) -> None:
        """Give this number as every output, whatever the input."""
        self.weights[-1].zero_()
        self.biases[-1].fill_(value)


class ParametricTemperatureScaling(Calibrator):
    """Divide the logits of every voxel by a temperature that its own log-probabilities decide.

    Args:
        largest: how many of the largest log-probabilities the network sees, at most.
        hidden: the sizes of its hidden layers.
        seed: of its random start.
    """

    name = "pts"
    title = "Temperature by voxel"
    translation_invariant = True
    preserves = "order"
    fitted_by = "gradient"
    competes = True

    def __init__(self, num_classes: int, largest: int = 10, hidden: Sequence[int] = (5, 5), seed: int = 0) -> None:
        super().__init__(num_classes, largest=largest, hidden=tuple(hidden), seed=seed)
        check_count(largest, "largest", 1, "Leave it out to use 10.")
        self.largest = min(largest, self.num_classes)
        self.network = Perceptron(self.largest, hidden, 1, seed)
        self.redundant = self.network.redundant

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature of the voxel."""
        features = canonical_logits(logits).topk(self.largest, dim=1, sorted=True).values
        last = features.movedim(1, -1)
        temperature = positive(self.network(last.reshape(-1, self.largest))).reshape(last[..., 0].shape)
        return (logits - logits.amax(dim=1, keepdim=True)) / temperature.unsqueeze(1)

    def plan(self) -> FusedPlan:
        """Return the layers."""
        layers = zip(self.network.weights, self.network.biases, strict=True)
        return FusedPlan("network", tuple(on_host(*(each for layer in layers for each in layer))), keeps=True)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.network.set_constant(before_positive(temperature))


class OrderPreservingNetwork(Calibrator):
    """Scale the gaps between neighbouring classes.

    Args:
        hidden: the sizes of the network's hidden layers.
        seed: of its random start.
    """

    name = "iop"
    title = "Order-keeping network"
    translation_invariant = True
    preserves = "order"
    fitted_by = "gradient"

    def __init__(self, num_classes: int, hidden: Sequence[int] = (32, 32), seed: int = 0) -> None:
        super().__init__(num_classes, hidden=tuple(hidden), seed=seed)
        self.network = Perceptron(self.num_classes - 1, hidden, self.num_classes - 1, seed)
        self.redundant = self.network.redundant

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return zero for the winner, and for the others the sums of the scaled gaps above them, negative."""
        last = logits.movedim(1, -1)
        ordered, order = descending(last.reshape(-1, self.num_classes))
        gaps = ordered[:, :-1] - ordered[:, 1:]
        sorted_scores = scores_from_outputs(positive(self.network(gaps)) * gaps, "stacked_drops")
        scores = torch.zeros_like(sorted_scores).scatter(1, order, sorted_scores)
        return scores.reshape(last.shape).movedim(-1, 1)

    def become_temperature(self, temperature: float) -> None:
        """Scale every gap by one over this temperature."""
        self.network.set_constant(before_positive(1 / temperature))
