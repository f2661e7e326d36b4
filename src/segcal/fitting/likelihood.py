r"""The mean NLL of a calibrator on given voxels, differentiable in its parameters, for training by gradient.

The passes of the exact fit already return value f and gradient g. They enter automatic differentiation as

.. math:: f + \langle g,\ \theta - \mathrm{const}(\theta)\rangle,

which has this value and this gradient, however :math:`\theta` depends on what is trained. The mixture of ETS is
treated the same way voxel by voxel: with p the tempered probability of the label,
:math:`dp / d\beta = p\,(z_y - E[z])`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.base import Calibrator
from segcal.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.fitting.convex_problem import ConvexProblem, Strengths
from segcal.fitting.request import Request
from segcal.fitting.sample import Voxels
from segcal.fitting.solver import make_problem
from segcal.fitting.voxels import VoxelSource


class Likelihood(ABC):
    """Mean NLL as a function of a calibrator.

    Attributes:
        untouched: experts that have no voxels.
    """

    untouched: tuple[int, ...] = ()

    @abstractmethod
    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL in float64, in one pass."""


def make_likelihood(calibrator: Calibrator, source: VoxelSource, request: Request) -> Likelihood:
    """Return the likelihood of calibrators like this one on these voxels."""
    if isinstance(calibrator, EnsembleTemperatureScaling):
        return MixtureLikelihood(source, request.device)
    return ConvexLikelihood(make_problem(calibrator, source, request))


class ConvexLikelihood(Likelihood):
    """The likelihood of a convex calibrator, by the passes of its exact fit.

    Args:
        problem: the voxels in the calibrator's coordinates; without a penalty.
    """

    def __init__(self, problem: ConvexProblem) -> None:
        self._problem = problem
        self._problem.set_strengths(Strengths(0.0, 0.0))
        self.untouched = tuple(e for e in range(problem.num_blocks) if e not in problem.blocks)

    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL."""
        theta = flatten(calibrator)
        constant = theta.detach()
        values, gradients = self._problem.evaluate(constant, self._problem.blocks)
        own = self._problem.blocks
        return values[own].sum() + ((theta - constant)[own] * gradients[own]).sum()


def flatten(calibrator: Calibrator) -> Tensor:
    """Return the parameters as ``(experts, variables)`` in the order of the exact fit, differentiable."""
    if isinstance(calibrator, TemperatureScaling):
        return calibrator.inverse_temperature.reshape(1, 1)
    if isinstance(calibrator, VectorScaling):
        return torch.cat([calibrator.scale, calibrator.bias])[None]
    assert isinstance(calibrator, AffineCalibrator)
    weight, bias, gauge = calibrator.weight, calibrator.bias, calibrator.gauge
    experts = calibrator.num_experts
    rows = torch.cat([weight, bias[..., None]], dim=-1).reshape(experts, -1)
    return torch.cat([rows, gauge.reshape(experts, -1)], dim=1)


class _Ready(NamedTuple):
    """Voxels with what does not change from pass to pass: gaps to the winner, and the original probability."""

    gaps: Tensor
    labels: Tensor
    weight: Tensor
    own: Tensor
    original: Tensor


class MixtureLikelihood(Likelihood):
    """The likelihood of ensemble temperature scaling, in the precision of the logits.

    Args:
        source: the voxels.
        device: where to compute.
    """

    def __init__(self, source: VoxelSource, device: torch.device) -> None:
        self._source, self._device = source, device
        self._kept = None if source.streamed else list(self._prepare())

    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL."""
        assert isinstance(calibrator, EnsembleTemperatureScaling)
        beta, mixture = calibrator.inverse_temperature, calibrator.mixture
        total, weight = torch.zeros((), dtype=torch.float64), 0.0
        for voxels in self._prepare() if self._kept is None else self._kept:
            tempered, slope = _tempered(voxels, float(beta.detach()))
            change = (beta - beta.detach()).to(self._device)
            w1, w2, w3 = mixture.to(self._device)
            probability = w1 * (tempered.double() + slope.double() * change) + w2 * voxels.original.double()
            probability = probability + w3 / len(voxels.gaps)
            total = total - (voxels.weight * probability.log()).sum().cpu()
            weight += float(voxels.weight.sum())
        return total / weight

    def _prepare(self) -> Iterable[_Ready]:
        for voxels in self._source:
            logits, labels, weight = Voxels(*(x.to(self._device) for x in voxels))
            gaps = logits - logits.amax(0)
            own = gaps.gather(0, labels.long()[None])[0]
            original = (own - gaps.logsumexp(0)).exp()
            yield _Ready(gaps, labels.long(), weight.double(), own, original)


def _tempered(voxels: _Ready, beta: float) -> tuple[Tensor, Tensor]:
    """Return the tempered probability of each label and its derivative in beta."""
    probs = torch.softmax(beta * voxels.gaps, dim=0)
    mean = torch.einsum("cn,cn->n", probs, voxels.gaps)
    tempered = probs.gather(0, voxels.labels[None])[0]
    return tempered, tempered * (voxels.own - mean)
