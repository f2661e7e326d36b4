r"""Fitting of ensemble temperature scaling: a search over the temperature with the weights solved inside.

For a fixed :math:`\beta` the likelihood is concave in the weights. The constraint :math:`\sum_k w_k = 1` is kept by
minimising

.. math:: -\frac1N \sum_v \log\bigl(w_1 p_v(\beta) + w_2 p_v(1) + w_3 / C\bigr) + \sum_k w_k, \qquad w \ge 0,

with p the probability of the label: at the minimum the weights sum to 1 of themselves, and only bounds remain.
The problem is not convex in :math:`\beta`. A grid of temperatures around the exact temperature fit is solved on few
voxels. The best one starts a Newton method in all four variables on all voxels. The certificate gives the largest
component of the projected gradient there.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import LARGEST, SMALLEST_SCALE
from segcal.calibrators.temperature import EnsembleTemperatureScaling
from segcal.fitting.certificate import Certificate
from segcal.fitting.convex_problem import coarse_stride, solve_temperature
from segcal.fitting.newton import BlockProblem, Curvature, minimise
from segcal.fitting.request import Request
from segcal.fitting.scores import certify
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.kernels.mixture_numba import mixture_terms

STEP_VALUES = 1 << 19
# Factors of the exact inverse temperature from which the search starts.
GRID = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 8.0)
FIRST_WEIGHTS = (0.9, 0.05, 0.05)


def fit_mixture(request: Request) -> Certificate:
    """Fit ETS; see the module docstring."""
    calibrator = request.calibrator
    assert isinstance(calibrator, EnsembleTemperatureScaling)
    source, device, tol = request.source, request.device, request.config.tol
    temperature = solve_temperature(source, device, tol)
    coarse = MixtureProblem(source, device, keep_every=coarse_stride(source.used))
    starts = [(factor * float(temperature.theta[0, 0]), *FIRST_WEIGHTS) for factor in GRID]
    found = []
    for start in starts:
        coarse.fix_temperature(start[0])
        found.append(minimise(coarse, torch.tensor([start], dtype=torch.float64), [0], 1e-5))
    best = min(found, key=lambda solution: float(solution.values[0])).theta
    problem = MixtureProblem(source, device)
    solution = minimise(problem, best, [0], tol, lambda residual: request.report(f"residual {residual:.1e}"))
    beta, weights = solution.theta[0, 0], solution.theta[0, 1:]
    objective = float(solution.values[0]) - 1
    # Never worse than temperature scaling alone, of which it is a mixture.
    if objective > float(temperature.values[0]):
        beta, weights, objective = temperature.theta[0, 0], torch.tensor([1.0, 0.0, 0.0]), float(temperature.values[0])
    with torch.no_grad():
        calibrator.inverse_temperature.copy_(beta)
        calibrator.mixture.copy_(weights / weights.sum())
    return certify(
        request,
        "mixture",
        objective,
        kkt_residual=float(solution.residuals[0]),
        converged=solution.converged,
        passes=temperature.evaluations + solution.evaluations,
        validation_nll=_validation_nll(request, beta, weights),
        details={"starts": len(starts), "convex": False},
    )


class MixtureProblem(BlockProblem):
    """The objective in (beta, w1, w2, w3), with its exact Hessian in every pass.

    With `keep_every` it uses every n-th voxel only, and keeps those, so that a streamed source is read once.
    """

    def __init__(self, source: VoxelSource, device: torch.device, keep_every: int | None = None) -> None:
        self._device = device
        self._voxels: Iterable[Voxels] = source
        if keep_every is not None:
            self._voxels = [voxels.each(lambda x: x[..., ::keep_every].contiguous()) for voxels in source]
        self.low = torch.tensor([SMALLEST_SCALE, 0.0, 0.0, 0.0], dtype=torch.float64)
        self.high = torch.tensor([LARGEST, 2.0, 2.0, 2.0], dtype=torch.float64)
        self._hessian = torch.eye(4, dtype=torch.float64)

    def fix_temperature(self, beta: float) -> None:
        """Solve for the weights alone."""
        self.low[0] = self.high[0] = min(max(beta, SMALLEST_SCALE), LARGEST)

    def evaluate(self, theta: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
        """Return objective and gradient; remember the Hessian."""
        value, total = 0.0, 0.0
        gradient, hessian = torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
        for voxels in self._voxels:
            for logits, labels, weight, *_ in voxels.steps(STEP_VALUES, self._device):
                terms = mixture_terms if logits.device.type == "cpu" else _terms
                own = terms(logits.double(), labels.long(), weight.double(), theta[0])
                value, gradient, hessian = value + own[0], gradient + own[1], hessian + own[2]
                total += float(weight.double().sum())
        self._hessian = hessian / total
        gradient = gradient / total + torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        return torch.tensor([value / total + float(theta[0, 1:].sum())], dtype=torch.float64), gradient[None]

    def curvature(self, block: int, theta: Tensor) -> Curvature:
        """Return the last Hessian, made positive by the absolute values of its eigenvalues."""
        hessian = self._hessian.clone()
        if self.low[0] == self.high[0]:  # the weights alone have a positive Hessian; beta must not bend it
            hessian[0, 1:] = hessian[1:, 0] = 0
        values, vectors = torch.linalg.eigh(hessian)
        return Curvature((vectors * values.abs().clamp(min=1e-10)) @ vectors.T)


def _terms(z: Tensor, labels: Tensor, weight: Tensor, theta: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the sums of -log m and of its first two derivatives, with m the mixture's probability of the label."""
    beta, w1, w2, w3 = (float(x) for x in theta)
    gaps = z - z.amax(0)
    own = gaps.gather(0, labels[None])[0]
    log_p = torch.log_softmax(beta * gaps, dim=0)
    probs = log_p.exp()
    mean = (probs * gaps).sum(0)
    variance = (probs * gaps.square()).sum(0) - mean.square()
    tempered = log_p.gather(0, labels[None])[0].exp()
    original = (own - torch.logsumexp(gaps, 0)).exp()
    uniform = torch.full_like(own, 1 / len(z))
    m = w1 * tempered + w2 * original + w3 * uniform
    slope = tempered * (own - mean)
    first = torch.stack([w1 * slope, tempered, original, uniform]) / m
    second = torch.zeros(4, 4, dtype=torch.float64, device=z.device)
    second[0, 0] = (weight * w1 * tempered * ((own - mean).square() - variance) / m).sum()
    second[0, 1] = second[1, 0] = (weight * slope / m).sum()
    hessian = (first * weight) @ first.T - second
    value = float(-(weight * m.log()).sum())
    return value if math.isfinite(value) else math.inf, -(first * weight).sum(1).cpu(), hessian.cpu()


def _validation_nll(request: Request, beta: Tensor, weights: Tensor) -> float | None:
    if request.validation is None:
        return None
    theta = torch.cat([beta.reshape(1), (weights / weights.sum()).double()])[None]
    return float(MixtureProblem(request.validation, request.device).evaluate(theta, [0])[0]) - 1


class MeanNLL(ABC):
    """Mean NLL as a function of a calibrator, for training by gradient (:mod:`segcal.fitting.paper`).

    Attributes:
        untouched: experts that have no voxels.
    """

    untouched: tuple[int, ...] = ()

    @abstractmethod
    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL in float64, in one pass."""


class MixtureLikelihood(MeanNLL):
    r"""The likelihood of ensemble temperature scaling, in the precision of the logits.

    Value and gradient of each voxel enter automatic differentiation: with p the tempered probability of the label,
    :math:`dp / d\beta = p\,(z_y - E[z])`.
    """

    def __init__(self, request: Request, source: VoxelSource) -> None:
        self._source, self._device = source, request.device
        self._kept = None if source.streamed else list(self._prepare())

    def __call__(self, calibrator: Calibrator) -> Tensor:
        """Return the mean NLL."""
        assert isinstance(calibrator, EnsembleTemperatureScaling)
        beta, (w1, w2, w3) = calibrator.inverse_temperature, calibrator.mixture.to(self._device)
        change = (beta - beta.detach()).to(self._device)
        total, mass = torch.zeros((), dtype=torch.float64), 0.0
        for gaps, labels, weight, own, original in self._prepare() if self._kept is None else self._kept:
            probs = torch.softmax(float(beta.detach()) * gaps, dim=0)
            tempered = probs.gather(0, labels[None])[0]
            slope = tempered * (own - torch.einsum("cn,cn->n", probs, gaps))
            probability = w1 * (tempered.double() + slope.double() * change) + w2 * original.double()
            probability = probability + w3 / len(gaps)
            total = total - (weight * probability.log()).sum().cpu()
            mass += float(weight.sum())
        return total / mass

    def _prepare(self) -> Iterable[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """Yield what does not change: gaps to the winner, labels, weights, and gap and probability of the labels."""
        for voxels in self._source:
            logits, labels, weight, *_ = voxels.each(lambda x: x.to(self._device))
            gaps = logits - logits.amax(0)
            own = gaps.gather(0, labels.long()[None])[0]
            yield gaps, labels.long(), weight.double(), own, (own - gaps.logsumexp(0)).exp()
