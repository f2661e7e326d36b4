r"""Local temperature scaling (LTS): one temperature for every voxel, from its neighbourhood.

.. math:: q_v = S(z_v / T_v), \qquad T_v = T(X)_v, \qquad X = z \ \text{(lts)} \quad\text{or}\quad X = \log S(z) \
    \text{(lts_ti)} \quad\text{(Eq. 7, 11)}

The tree of :mod:`segcal.calibrators.temperature_tree` makes the temperatures. One positive number divides all classes
of a voxel, so no two change places; the winner is moved to zero first, so that near ties are not lost to an offset. On
logits the temperature sees their offset; on log-probabilities it does not. In volumes the last two axes are the plane
and slices do not see each other, unless `full_3d`. 7 (25 C + 1) parameters, all of them identifiable (125 instead of 25
with `full_3d`).
"""

from typing import Literal

from torch import Tensor

from segcal.calibrators.look_around import LookAround, without_margin
from segcal.calibrators.temperature_tree import REACH, TemperatureTree, before_positive, positive
from segcal.checks import check_volume
from segcal.numerics import canonical_logits
from segcal.types import Logits


class LocalTemperatureScaling(LookAround):
    """Divide the logits of every voxel by a temperature of its own.

    Args:
        num_classes: number of classes C.
        canonical: see log-probabilities instead of logits.
        image_channels: channels of the image that the temperature sees too; 0 for none.
        full_3d: see neighbours in all three axes of a volume.
        gate_init: "random", or "zeros" for the published start, from which the tree cannot grow.
        seed: of the random gates.
    """

    title = "Local temperature scaling"
    preserves = "order"

    def __init__(
        self,
        num_classes: int,
        canonical: bool = False,
        image_channels: int = 0,
        full_3d: bool = False,
        gate_init: Literal["random", "zeros"] = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(
            num_classes,
            canonical=canonical,
            image_channels=image_channels,
            full_3d=full_3d,
            gate_init=gate_init,
            seed=seed,
        )
        self.translation_invariant = canonical
        self.title = "Local temperature scaling, offset-free" if canonical else self.title
        self.tree = TemperatureTree(self.num_classes, image_channels, full_3d, gate_init, seed)

    def margin(self, axes: int) -> tuple[int, ...]:
        """Return 4 for the axes that kernels run over, 0 for those before."""
        check_volume(axes, self.tree.axes)
        return (*(0,) * (axes - self.tree.axes), *(REACH,) * self.tree.axes)

    def reach(self, axes: int) -> tuple[int, ...]:
        """Return the margin: nothing else is seen."""
        return self.margin(axes)

    def inner_scores(self, logits: Logits, image: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperatures."""
        temperature = self.inner_temperature(logits, image)
        inside = without_margin(logits, self.margin(logits.ndim - 2))
        return (inside - inside.amax(dim=1, keepdim=True)) / temperature

    def inner_temperature(self, logits: Logits, image: Tensor | None = None) -> Tensor:
        """Return the temperature ``(batch, 1, *inside)`` of the voxels inside the margin."""
        features = canonical_logits(logits) if self.translation_invariant else logits
        return positive(self.tree(features, image))

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.tree.set_constant(before_positive(temperature))

    def num_identifiable(self) -> int:
        """Return all of them: only discrete swaps of leaves change nothing."""
        return self.num_parameters()
