r"""Parameterised temperature scaling (PTS): a temperature for every voxel, from its own prediction.

.. math:: q = S(z / T), \qquad T = \epsilon + \log\left(1 + e^{f(\mathrm{sort}_k \log S(z)) + c_0}\right)

where f is a small network that sees the k largest log-probabilities of the voxel in descending order, whatever their
classes. Log-probabilities do not see an offset of the logits: translation-invariant. One positive number divides all
classes: every order is kept. With c_0 and the form of T of :mod:`segcal.calibrators.temperature_tree`, and with the
network's last layer at zero, a new calibrator has T = 1 exactly.

Departures from the paper: it takes the absolute value of the network's output, which can reach zero, and logits; its
loss is the squared error of probabilities, ours the likelihood. Two hidden layers of 5 and k = 10 are the paper's.
"""

from collections.abc import Sequence

from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.perceptron import Perceptron
from segcal.calibrators.temperature_tree import before_positive, positive
from segcal.errors import InputError
from segcal.numerics import canonical_logits
from segcal.types import Context, Logits


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

    def __init__(self, num_classes: int, largest: int = 10, hidden: Sequence[int] = (5, 5), seed: int = 0) -> None:
        super().__init__(num_classes, largest=largest, hidden=tuple(hidden), seed=seed)
        if isinstance(largest, bool) or not isinstance(largest, int) or largest < 1:
            raise InputError(f"largest is {largest!r}, but a count of at least 1 is needed. Leave it out to use 10.")
        self.largest = min(largest, self.num_classes)
        self.network = Perceptron(self.largest, hidden, 1, seed)

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature of the voxel."""
        features = canonical_logits(logits).topk(self.largest, dim=1, sorted=True).values
        last = features.movedim(1, -1)
        temperature = positive(self.network(last.reshape(-1, self.largest))).reshape(last[..., 0].shape)
        return (logits - logits.amax(dim=1, keepdim=True)) / temperature.unsqueeze(1)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.network.set_constant(before_positive(temperature))

    def num_identifiable(self) -> int:
        """Return the number of parameters less one scale a hidden unit."""
        return self.network.num_identifiable()
