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

**The margin.** A voxel's result depends on a window around it. Near the border the image is
continued by reflection; an axis that is too short to be reflected is continued by its last value. A subclass writes
:meth:`LookAround.inner_scores`, which takes logits that have the margin already and returns the scores of what is
inside it. So a whole image and a piece cut out of it go the same way: :mod:`segcal.evaluation.slabs` applies a
calibrator piece by piece, with the same result and bounded memory, and training sees crops as if they were whole.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, check_context
from segcal.calibrators.temperature_tree import REACH, TemperatureTree, before_positive, positive
from segcal.checks import check_planes, check_volume
from segcal.numerics import canonical_logits
from segcal.types import Context, Logits


class LookAround(Calibrator):
    """A calibrator whose temperatures are made by a tree of convolutions, so that voxels see their neighbours."""

    pointwise = False
    preserves = "order"
    fitted_by = "gradient"
    tree: TemperatureTree

    def margin(self, axes: int) -> tuple[int, ...]:
        """Return how far kernels reach along each of `axes` axes of space: 4 voxels along the last ones."""
        check_volume(axes, self.tree.axes)
        return (*(0,) * (axes - self.tree.axes), *(REACH,) * self.tree.axes)

    @abstractmethod
    def _temperature(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the temperatures of what is inside the margin from what the tree gives there."""

    def inner_scores(self, logits: Logits, context: Context | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the distances to the winner, divided by the temperatures, of what is inside the margin.

        Args:
            logits: ``(batch, classes, *space)`` with the margin.
            context: with the margin.
            weight: ``(batch, 1, *inside)``, for how many voxels of the image each one stands; 1 if not given.
        """
        features = canonical_logits(logits) if self.translation_invariant else logits
        temperature = self._temperature(self.tree(features, None if context is None else context.image), weight)
        inside = without_margin(logits, self.margin(logits.ndim - 2))
        return (inside - inside.amax(dim=1, keepdim=True)) / temperature

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return unnormalised log-probabilities; see :class:`segcal.calibrators.base.Calibrator`."""
        check_planes(logits, self.name)
        check_context(context)
        margin = self.margin(logits.ndim - 2)
        around = each_part(context, lambda part: with_margin(part.to(logits.dtype), margin))
        return self.inner_scores(with_margin(logits, margin), around)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.tree.set_constant(before_positive(temperature))


class LocalTemperatureScaling(LookAround):
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

    def _temperature(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        return positive(values)


class ImageTemperatureScaling(LookAround):
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

    def _temperature(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        space = tuple(range(1, values.ndim))
        if weight is None:
            return positive(values.mean(dim=space, keepdim=True))
        total = weight.sum(dim=space, keepdim=True).clamp(min=1e-12)
        return positive((values * weight).sum(dim=space, keepdim=True) / total)


def each_part(context: Context | None, change: Callable[[Tensor], Tensor]) -> Context | None:
    """Return a context whose parts were changed alike; `change` sees them as ``(batch, channels, *space)``."""
    if context is None:
        return None
    image, disagreement, _ = context
    return context._replace(
        image=None if image is None else change(image),
        disagreement=None if disagreement is None else change(disagreement.unsqueeze(1)).squeeze(1),
    )


def with_margin(values: Tensor, margin: Sequence[int]) -> Tensor:
    """Continue ``(batch, channels, *space)`` by reflection, and an axis that is too short for it by its last value.

    >>> import torch
    >>> with_margin(torch.tensor([[[[1.0, 2.0, 3.0]]]]), (0, 2))
    tensor([[[[3., 2., 1., 2., 3., 2., 1.]]]])
    >>> with_margin(torch.tensor([[[[1.0, 2.0]]]]), (0, 2))
    tensor([[[[1., 1., 1., 2., 2., 2.]]]])
    """
    sizes = values.shape[2:]
    long = [width if size > width else 0 for size, width in zip(sizes, margin, strict=True)]
    short = [width - own for width, own in zip(margin, long, strict=True)]
    for mode, widths in (("reflect", long), ("replicate", short)):
        if any(widths):
            values = nn.functional.pad(values, [width for width in reversed(widths) for _ in range(2)], mode=mode)
    return values


def without_margin(values: Tensor, margin: Sequence[int]) -> Tensor:
    """Return what is inside the margin, as a view."""
    for axis, width in enumerate(margin, start=2):
        values = values.narrow(axis, width, values.shape[axis] - 2 * width)
    return values
