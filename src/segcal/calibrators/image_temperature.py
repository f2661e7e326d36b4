r"""Image-based temperature scaling (IBTS): one temperature for every image, from the image's own voxels.

.. math:: q_v = S(z_v / T), \qquad T = \epsilon + \log\left(1 + e^{\bar t + c_0}\right), \qquad
    \bar t = \frac1V \sum_v t(\log S(z))_v ,

with the t of local temperature scaling (:mod:`segcal.calibrators.temperature_tree`), averaged over all voxels of the
image before it becomes a temperature. It sees log-probabilities, so it is translation-invariant, and one positive
number divides all logits, so every order is kept. 7 (25 C + 1) parameters, all identifiable on enough images.

Departures from the published code: a mean over each image and not over whatever is in the batch; log-probabilities
instead of logits; the start of lts_ti.
"""

from typing import Literal

from torch import Tensor

from segcal.calibrators.look_around import LookAround, without_margin
from segcal.calibrators.temperature_tree import REACH, TemperatureTree, before_positive, positive
from segcal.numerics import canonical_logits
from segcal.types import Logits


class ImageTemperatureScaling(LookAround):
    """Divide all logits of an image by one temperature, which the image's log-probabilities decide.

    Args:
        num_classes: number of classes C.
        image_channels: channels of the image that the temperature sees too; 0 for none.
        gate_init: "random", or "zeros" for the published start, from which the tree cannot grow.
        seed: of the random gates.
    """

    title = "Temperature by image"
    translation_invariant = True
    preserves = "order"

    def __init__(
        self,
        num_classes: int,
        image_channels: int = 0,
        gate_init: Literal["random", "zeros"] = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes, image_channels=image_channels, gate_init=gate_init, seed=seed)
        self.tree = TemperatureTree(self.num_classes, image_channels, False, gate_init, seed)

    def margin(self, axes: int) -> tuple[int, ...]:
        """Return 4 for the last two axes, 0 for those before."""
        return (*(0,) * (axes - 2), REACH, REACH)

    def reach(self, axes: int) -> None:
        """Return None: a voxel sees the whole image."""
        return

    def inner_scores(self, logits: Logits, image: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature of the image."""
        values = self.tree(canonical_logits(logits), image)
        space = tuple(range(1, values.ndim))
        if weight is None:
            mean = values.mean(dim=space, keepdim=True)
        else:
            total = weight.sum(dim=space, keepdim=True).clamp(min=1e-12)
            mean = (values * weight).sum(dim=space, keepdim=True) / total
        inside = without_margin(logits, self.margin(logits.ndim - 2))
        return (inside - inside.amax(dim=1, keepdim=True)) / positive(mean)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.tree.set_constant(before_positive(temperature))

    def num_identifiable(self) -> int:
        """Return all of them: only discrete swaps of leaves change nothing."""
        return self.num_parameters()
