r"""Local temperature scaling (LTS): one temperature for every voxel, from its neighbourhood.

.. math:: q_v = S(z_v / T_v), \qquad T_v = T(X)_v, \qquad X = z \ \text{(lts)} \quad\text{or}\quad X = \log S(z) \
    \text{(lts_ti)} \quad\text{(Eq. 7, 11)}

A tree of convolutions makes the temperatures (below). One positive number divides all classes of a voxel, so no two
change places. The winner is moved to zero first, so that near ties are not lost to an offset. On logits the temperature
sees their offset; on log-probabilities it does not. In volumes the last two axes are the plane and slices do not see
each other, unless `full_3d`. 7 (25 C + 1) parameters, all of them identifiable (125 instead of 25 with `full_3d`; only
discrete swaps of leaves change nothing).

**Image-based temperature scaling (IBTS)** has one temperature for every image, from the image's own voxels:

.. math:: q_v = S(z_v / T), \qquad T = \epsilon + \log\left(1 + e^{\bar t + c_0}\right), \qquad
    \bar t = \frac1V \sum_v t(\log S(z))_v ,

with the t of local temperature scaling, averaged over all voxels of the image before it becomes a temperature. It sees
log-probabilities, so it is translation-invariant, and one positive number divides all logits, so every order is kept. 7
(25 C + 1) parameters, all identifiable on enough images.

Departures from the published code are a mean over each image and not over the batch, log-probabilities instead of
logits, and the start of lts_ti.

**The tree** of Ding et al. (2021), tau of Eq. 7 and 11. Seven convolutions with kernel 5 and dilation 2 see the
features X of a voxel's neighbourhood. They are four leaves :math:`t_i` and three gates :math:`g_i`, mixed by sigmoids
:math:`\sigma`,

.. math::
    t = \sigma(g_3) \left[\sigma(g_1) t_1 + \sigma(-g_1) t_2\right]
      + \sigma(-g_3) \left[\sigma(g_2) t_3 + \sigma(-g_2) t_4\right], \qquad
    T = \epsilon + \log(1 + e^{t + c_0}) = 1 + \log(1 + e^{t + c_0}) - \log(1 + e^{c_0}) ,

with :math:`\epsilon = 10^{-3}` and :math:`c_0 = \log(e^{1 - \epsilon} - 1)`. The second form gives T = 1 exactly for
t = 0. `weight` and `bias` hold the convolutions, leaves first: 7 (25 C + 1) parameters. With images of K channels one
more leaf sees the image and one more gate the features, as in the original:
:math:`t' = \sigma(g_4)\, t + \sigma(-g_4)\, t_I`.

Departures from the published code: leaves start at zero and gates at small random numbers. Published, all start at
zero, and then the four leaves get the same gradient for ever and the gates none. The tree never becomes more than one
convolution (``gate_init="zeros"`` reproduces it). Softplus replaces the ReLU, whose gradient dies, and whose start is T
= 2.

**The margin.** A voxel's result depends on a window around it. Near the border the image is continued by reflection; an
axis that is too short to be reflected is continued by its last value. :meth:`SeesNeighbours.inner_scores` takes logits
that have the margin already and returns the scores of what is inside it. So a whole image and a piece cut out of it go
the same way. :mod:`segcal.evaluation.slabs` applies a calibrator piece by piece, with the same result and bounded
memory. Training sees crops as if they were whole.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, check_context
from segcal.checks import check_count, check_planes, check_volume
from segcal.errors import InputError
from segcal.kernels.plan import AT_ONE, SMALLEST_TEMPERATURE
from segcal.numerics import canonical_logits
from segcal.types import Context, Logits

KERNEL, DILATION = 5, 2
REACH = DILATION * (KERNEL // 2)
LEAVES, GATES = 4, 3
# Standard deviation of a gate's pre-activation for features of size one: gates differ, but start near one half.
GATE_SPREAD = 0.1


def positive(values: Tensor) -> Tensor:
    """Return T of the module docstring: 1 at zero, above 0.001 everywhere, and about t for large t."""
    at_one = torch.full((), AT_ONE, dtype=values.dtype, device=values.device)
    return 1 + (nn.functional.softplus(values + at_one) - nn.functional.softplus(at_one))


def before_positive(temperature: float) -> float:
    """Return the t whose T this is; for a temperature that T cannot reach, one that is hardly above the smallest.

    >>> float(positive(torch.tensor(before_positive(2.5), dtype=torch.float64)))
    2.5
    """
    above = max(temperature - SMALLEST_TEMPERATURE, 1e-6)
    return above + math.log(-math.expm1(-above)) - AT_ONE


class TemperatureTree(nn.Module):
    """Maps features of so many channels, with a margin, to the t of every voxel inside it.

    The options are those of :class:`LocalTemperatureScaling`.
    """

    def __init__(
        self, channels: int, image_channels: int, full_3d: bool, gate_init: Literal["random", "zeros"], seed: int
    ) -> None:
        super().__init__()
        if gate_init not in ("random", "zeros"):
            raise InputError(f"gate_init is {gate_init!r}, but it must be 'random' or 'zeros'. Choose one of the two.")
        check_count(image_channels, "image_channels", 0, "Use 3 for RGB.", what="whole number")
        self.axes = 3 if full_3d else 2
        kernel = (KERNEL,) * self.axes
        rows = LEAVES + GATES + (image_channels > 0)
        weight = torch.zeros(rows, channels, *kernel, dtype=torch.float64)
        if gate_init == "random":
            spread = GATE_SPREAD / math.sqrt(weight[0].numel())
            generator = torch.Generator().manual_seed(seed)
            weight[LEAVES:] = spread * torch.randn(weight[LEAVES:].shape, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(rows, dtype=torch.float64))
        self.image_channels = image_channels
        if image_channels:
            self.image_weight = nn.Parameter(torch.zeros(1, image_channels, *kernel, dtype=torch.float64))
            self.image_bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            # Where the values of the images lie; set when it is fitted.
            self.register_buffer("image_centre", torch.zeros(image_channels, dtype=torch.float64))
            self.register_buffer("image_scale", torch.ones(image_channels, dtype=torch.float64))

    def forward(self, features: Tensor, image: Tensor | None) -> Tensor:
        """Return t ``(batch, 1, *inside)``."""
        t1, t2, t3, t4, *gates = self._convolve(features, self.weight, self.bias).split(1, dim=1)
        g1, g2, g3 = (torch.sigmoid(gate) for gate in gates[:GATES])
        tree = torch.lerp(torch.lerp(t4, t3, g2), torch.lerp(t2, t1, g1), g3)
        if not self.image_channels:
            return tree
        if image is None or image.shape[1] != self.image_channels:
            found = "None" if image is None else f"of {image.shape[1]} channels"
            raise InputError(
                f"image is {found}, but this calibrator sees images of {self.image_channels} channels. "
                "Open the cases with images=, or fit a calibrator without an image branch."
            )
        like = (1, -1, *(1,) * (image.ndim - 2))
        buffers = (self.get_buffer(name) for name in ("image_centre", "image_scale"))
        centre, scale = (x.to(image.dtype).reshape(like) for x in buffers)
        leaf = self._convolve((image - centre) / scale, self.image_weight, self.image_bias)
        return torch.lerp(leaf, tree, torch.sigmoid(gates[GATES]))

    @torch.no_grad()
    def set_constant(self, value: float) -> None:
        """Give this t everywhere: all leaves are equal, and what the gates say does not matter."""
        self.weight[:LEAVES] = 0
        self.bias[:LEAVES] = value
        if self.image_channels:
            self.image_weight.zero_()
            self.image_bias.fill_(value)

    def _convolve(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the valid part of a convolution over the last axes; axes before them are further examples."""
        dtype = values.dtype  # in mixed precision the result has another
        weight, bias = weight.to(dtype), bias.to(dtype)
        if self.axes == 3:
            return nn.functional.conv3d(values, weight, bias, dilation=DILATION).to(dtype)
        if values.ndim == 4:
            return nn.functional.conv2d(values, weight, bias, dilation=DILATION).to(dtype)
        batch, channels, depth, *plane = values.shape
        slices = values.movedim(2, 1).reshape(batch * depth, channels, *plane)
        found = nn.functional.conv2d(slices, weight, bias, dilation=DILATION).to(dtype)
        return found.reshape(batch, depth, *found.shape[1:]).movedim(1, 2)


class SeesNeighbours(Calibrator):
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
        image = None if context is None or context.image is None else context.image.to(logits.dtype)
        around = None if image is None else Context(image=with_margin(image, margin))
        return self.inner_scores(with_margin(logits, margin), around)

    def become_temperature(self, temperature: float) -> None:
        """Give every voxel this temperature."""
        self.tree.set_constant(before_positive(temperature))


class LocalTemperatureScaling(SeesNeighbours):
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


class ImageTemperatureScaling(SeesNeighbours):
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


def with_margin(values: Tensor, margin: Sequence[int]) -> Tensor:
    """Continue ``(batch, channels, *space)`` by reflection, and an axis that is too short for it by its last value.

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
