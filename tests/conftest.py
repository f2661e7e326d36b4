"""What every test may use: weights that a fitted calibrator could have, and one thread per worker process."""

import os

import numba
import pytest
import torch

from segcal.calibrators.affine import AffineCalibrator

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores already
    numba.set_num_threads(1)


def _randomise_affine(calibrator, generator, edge):
    """Fill weight and bias within their bounds: with experts' cones on their edge (many zeros) if asked."""
    low, _ = calibrator.weight_bounds()
    noise = 0.3 * torch.randn(calibrator.weight.shape, generator=generator, dtype=torch.float64)
    bias = 0.5 * torch.randn(calibrator.bias.shape, generator=generator, dtype=torch.float64)
    identity = calibrator.weight.detach().clone()
    if calibrator.bias_bounds()[0] == 0:  # a cone
        noise, bias = noise.abs(), bias.abs()
        if edge:
            noise *= torch.rand(noise.shape, generator=generator) < 0.5
            bias *= torch.rand(bias.shape, generator=generator) < 0.5
            identity *= 10 ** (4 * torch.rand(identity.shape, generator=generator) - 3)
    calibrator.weight.copy_((identity + noise).clamp(min=low))
    calibrator.bias.copy_(bias)
    calibrator.gauge.add_(torch.randn(calibrator.gauge.shape, generator=generator, dtype=torch.float64))


@pytest.fixture
def randomise():
    """Give a calibrator random weights that respect its bounds, and return it."""

    @torch.no_grad()
    def fill(calibrator, seed=0, edge=False):
        generator = torch.Generator().manual_seed(seed)
        if isinstance(calibrator, AffineCalibrator):
            _randomise_affine(calibrator, generator, edge)
            return calibrator
        for name, parameter in calibrator.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if name in ("inverse_temperature", "scale"):
                parameter.copy_((0.7 * noise).exp())
            elif name == "mixture":
                parameter.copy_(torch.softmax(noise, 0))
            else:
                parameter.add_(0.3 * noise)
        return calibrator

    return fill
