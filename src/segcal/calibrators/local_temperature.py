r"""Local temperature scaling (LTS): one temperature for every voxel, from its neighbourhood.

.. math:: q_v = S(z_v / T_v), \qquad T_v = T(X)_v, \qquad X = z \ \text{(lts)} \quad\text{or}\quad X = \log S(z) \
    \text{(lts_ti)} \quad\text{(Eq. 7, 11)}

The tree of :mod:`segcal.calibrators.temperature_tree` makes the temperatures. One positive number divides all classes
of a voxel, so no two change places; the winner is moved to zero first, so that near ties are not lost to an offset. On
logits the temperature sees their offset; on log-probabilities it does not. In volumes the last two axes are the plane
and slices do not see each other, unless `full_3d`. 7 (25 C + 1) parameters, all of them identifiable (125 instead of 25
with `full_3d`; only discrete swaps of leaves change nothing).

**Image-based temperature scaling (IBTS)** has one temperature for every image, from the image's own voxels:

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
from segcal.checks import check_volume
from segcal.numerics import canonical_logits
from segcal.types import Context, Logits


class _TreeScaling(LookAround):
    """A tree of convolutions makes the temperatures; one positive number divides all classes of a voxel."""

    preserves = "order"
    tree: TemperatureTree

    def margin(self, axes: int) -> tuple[int, ...]:
        """Return 4 for the axes that kernels run over, 0 for those before."""
        check_volume(axes, self.tree.axes)
        return (*(0,) * (axes - self.tree.axes), *(REACH,) * self.tree.axes)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.tree.set_constant(before_positive(temperature))


class LocalTemperatureScaling(_TreeScaling):
    """Divide the logits of every voxel by a temperature of its own.

    Args:
        canonical: see log-probabilities instead of logits.
        image_channels: channels of the image that the temperature sees too; 0 for none.
        full_3d: see neighbours in all three axes of a volume.
        gate_init: "random", or "zeros" for the published start, from which the tree cannot grow.
        seed: of the random gates.
    """

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
        self.name = "lts_ti" if canonical else "lts"
        self.title = "Local temperature scaling, offset-free" if canonical else "Local temperature scaling"
        self.translation_invariant = canonical
        self.tree = TemperatureTree(self.num_classes, image_channels, full_3d, gate_init, seed)

    def reach(self, axes: int) -> tuple[int, ...]:
        """Return the margin: nothing else is seen."""
        return self.margin(axes)

    def inner_scores(self, logits: Logits, context: Context | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperatures."""
        temperature = self.inner_temperature(logits, context)
        inside = without_margin(logits, self.margin(logits.ndim - 2))
        return (inside - inside.amax(dim=1, keepdim=True)) / temperature

    def inner_temperature(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return the temperature ``(batch, 1, *inside)`` of the voxels inside the margin."""
        features = canonical_logits(logits) if self.translation_invariant else logits
        return positive(self.tree(features, None if context is None else context.image))


class ImageTemperatureScaling(_TreeScaling):
    """Divide all logits of an image by one temperature, which the image's log-probabilities decide.

    Args:
        image_channels: channels of the image that the temperature sees too; 0 for none.
        gate_init: "random", or "zeros" for the published start, from which the tree cannot grow.
        seed: of the random gates.
    """

    name = "ibts"
    title = "Temperature by image"
    translation_invariant = True

    def __init__(
        self, num_classes: int, image_channels: int = 0, gate_init: Literal["random", "zeros"] = "random", seed: int = 0
    ) -> None:
        super().__init__(num_classes, image_channels=image_channels, gate_init=gate_init, seed=seed)
        self.tree = TemperatureTree(self.num_classes, image_channels, False, gate_init, seed)

    def reach(self, axes: int) -> None:
        """Return None: a voxel sees the whole image."""
        return

    def inner_scores(self, logits: Logits, context: Context | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperature of the image."""
        values = self.tree(canonical_logits(logits), None if context is None else context.image)
        space = tuple(range(1, values.ndim))
        if weight is None:
            mean = values.mean(dim=space, keepdim=True)
        else:
            total = weight.sum(dim=space, keepdim=True).clamp(min=1e-12)
            mean = (values * weight).sum(dim=space, keepdim=True) / total
        inside = without_margin(logits, self.margin(logits.ndim - 2))
        return (inside - inside.amax(dim=1, keepdim=True)) / positive(mean)
