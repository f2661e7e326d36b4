r"""The network behind local temperatures: a tree of convolutions (Ding et al., 2021), tau of Eq. 7 and 11.

Seven convolutions with kernel 5 and dilation 2 see the features X of a voxel's neighbourhood: four leaves :math:`t_i`
and three gates :math:`g_i`, mixed by sigmoids :math:`\sigma`,

.. math::
    t = \sigma(g_3) \left[\sigma(g_1) t_1 + \sigma(-g_1) t_2\right]
      + \sigma(-g_3) \left[\sigma(g_2) t_3 + \sigma(-g_2) t_4\right], \qquad
    T = \epsilon + \log(1 + e^{t + c_0}) = 1 + \log(1 + e^{t + c_0}) - \log(1 + e^{c_0}) ,

with :math:`\epsilon = 10^{-3}` and :math:`c_0 = \log(e^{1 - \epsilon} - 1)`. The second form gives T = 1 exactly for
t = 0. `weight` and `bias` hold the convolutions, leaves first: 7 (25 C + 1) parameters. With images of K channels one
more leaf sees the image and one more gate the features, as in the original:
:math:`t' = \sigma(g_4)\, t + \sigma(-g_4)\, t_I`.

Departures from the published code: leaves start at zero and gates at small random numbers. Published, all start at
zero, and then the four leaves get the same gradient for ever and the gates none: the tree never becomes more than one
convolution (``gate_init="zeros"`` reproduces it). Softplus replaces the ReLU, whose gradient dies, and whose start is
T = 2.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from segcal.checks import check_count
from segcal.errors import InputError

SMALLEST_TEMPERATURE = 1e-3
AT_ONE = math.log(math.exp(1 - SMALLEST_TEMPERATURE) - 1)  # c_0
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

    The options are those of :class:`segcal.calibrators.local_temperature.LocalTemperatureScaling`.
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
