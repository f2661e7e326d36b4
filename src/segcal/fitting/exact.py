r"""Fitting of convex calibrators to the optimum of mean NLL plus Eq. 15, with a certificate.

First the problem is solved on a small sample in which hard voxels are frequent; from there a few Newton steps on all
voxels of the fit remain. The strengths :math:`\lambda` and :math:`\mu` are chosen on validation NLL along a path from
strong to none, each solution starting the next: first both together, then :math:`\mu` alone at the best
:math:`\lambda`. There is no learning rate, no patience and no trial budget, and the answer is the same every time.
"""

import torch
from torch import Tensor

from segcal.calibrators.affine import LARGEST, AffineCalibrator
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.fitting import trust_region
from segcal.fitting.affine_problem import AffineProblem
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import DEFAULT_STRENGTH, STRENGTHS
from segcal.fitting.convex_problem import ConvexProblem
from segcal.fitting.frames import Frames
from segcal.fitting.newton import Solution, minimise, projected_gradient
from segcal.fitting.request import Request
from segcal.fitting.temperature_problem import TemperatureProblem
from segcal.fitting.vector_problem import VectorProblem, vector_frame
from segcal.fitting.voxels import StreamedVoxels, VoxelSource

# The first approach on a sample, and the solutions along the path, need not be exact.
COARSE_TOL = 1e-4
PATH_TOL = 1e-5
# Mean NLL of an expert's own voxels below which they count as explained.
SEPARABLE_NLL = 1e-4


def make_problem(calibrator: Calibrator, source: VoxelSource, request: Request) -> ConvexProblem:
    """Return the convex problem of this calibrator on these voxels."""
    memory, device, seed = request.config.memory, request.device, request.config.seed
    if isinstance(calibrator, TemperatureScaling):
        return TemperatureProblem(calibrator, source, device)
    if isinstance(calibrator, VectorScaling):
        return VectorProblem(calibrator, Frames(source, vector_frame(calibrator), 1, memory, device), seed)
    assert isinstance(calibrator, AffineCalibrator)
    frames = Frames(source, calibrator.frame, calibrator.num_experts, memory, device, centred=True)
    return AffineProblem(calibrator, frames, seed)


def fit_convex(request: Request) -> Certificate:
    """Fit a convex calibrator; see the module docstring."""
    problem = make_problem(request.calibrator, request.source, request)
    validation = None
    if request.validation is not None:
        validation = make_problem(request.calibrator, request.validation, request)
    search = _Search(problem, validation, request)
    lam, mu = _given(request, problem.strengths)
    if lam is None or mu is None:
        lam, mu = search.choose(lam, mu)
    solution = search.solve(lam, mu, request.config.tol)
    problem.write(solution.theta)
    nll = solution.values - problem.penalties(solution.theta)
    return Certificate(
        method="convex",
        objective=float(solution.values[problem.blocks].sum()),
        nll=float(nll[problem.blocks].sum()),
        kkt_residual=float(solution.residuals[problem.blocks].max()),
        converged=solution.converged,
        passes=search.passes,
        voxels=request.source.used,
        voxels_available=request.source.available,
        lam=lam,
        mu=mu,
        validation_nll=search.validation_nll(solution.theta),
        path=tuple(search.path),
        active_bounds=_active_bounds(problem, solution.theta),
        separable=tuple(e for e in problem.blocks if nll[e] < SEPARABLE_NLL * problem.block_weights[e]),
        untouched=tuple(e for e in range(problem.num_blocks) if e not in problem.blocks),
        full_residual=_full_residual(request, solution.theta, lam, mu) if request.config.verify else None,
    )


class _Search:
    """Solves the problem at given strengths, each time from the last solution, and counts the passes."""

    def __init__(self, problem: ConvexProblem, validation: ConvexProblem | None, request: Request) -> None:
        self._problem, self._validation, self._request = problem, validation, request
        self._theta: Tensor | None = None
        self.passes = 0
        self.path: list[dict[str, float]] = []

    def solve(self, lam: float, mu: float, tol: float) -> Solution:
        problem = self._problem
        problem.set_strengths(lam, mu)
        if self._theta is None:
            coarse, self._theta = problem.coarse(), problem.start()
            if coarse is not None:
                self._theta = minimise(coarse, self._theta, problem.blocks, COARSE_TOL).theta
        if problem.large:
            assert isinstance(problem, trust_region.ProductProblem)
            solution = trust_region.minimise(problem, self._theta, problem.blocks, tol, self._report)
        else:
            solution = minimise(problem, self._theta, problem.blocks, tol, self._report)
        self._theta = solution.theta
        self.passes += solution.evaluations
        return solution

    def choose(self, lam: float | None, mu: float | None) -> tuple[float, float]:
        """Walk the path and return the strengths with the lowest validation NLL; of equal ones, the strongest."""
        tried: dict[tuple[float, float], tuple[float, Tensor]] = {}
        self._walk([(s if lam is None else lam, s if mu is None else mu) for s in STRENGTHS], tried)
        best = min(tried, key=lambda pair: tried[pair][0])
        if lam is None and mu is None:
            self._theta = tried[best][1]
            self._walk([(best[0], s) for s in STRENGTHS if (best[0], s) not in tried], tried)
            best = min(tried, key=lambda pair: tried[pair][0])
        self._theta = tried[best][1]
        self.path = [{"lam": a, "mu": b, "validation_nll": value} for (a, b), (value, _) in tried.items()]
        return best

    def validation_nll(self, theta: Tensor) -> float | None:
        """Return the mean NLL on the validation voxels."""
        if self._validation is None:
            return None
        return float(self._validation.likelihood(theta).sum())

    def _walk(self, pairs: list[tuple[float, float]], tried: dict[tuple[float, float], tuple[float, Tensor]]) -> None:
        for lam, mu in pairs:
            theta = self.solve(lam, mu, PATH_TOL).theta
            value = self.validation_nll(theta)
            assert value is not None
            tried[lam, mu] = (value, theta)
            self._request.report(f"lam {lam:g}, mu {mu:g}: validation NLL {value:.5f}")

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")


def _given(request: Request, strengths: tuple[bool, bool]) -> tuple[float | None, float | None]:
    """Return lam and mu where they are fixed: by the user, by having no effect, or by the lack of validation data."""
    fixed: list[float | None] = []
    for value, has_effect in zip((request.config.lam, request.config.mu), strengths, strict=True):
        if not has_effect:
            fixed.append(0.0)
        elif value is None and request.validation is None:
            fixed.append(DEFAULT_STRENGTH)
        else:
            fixed.append(value)
    return fixed[0], fixed[1]


def _full_residual(request: Request, theta: Tensor, lam: float, mu: float) -> float:
    """Return the residual of the same objective on all voxels, streamed."""
    problem = make_problem(request.calibrator, StreamedVoxels(request.cases, lambda: None), request)
    problem.set_strengths(lam, mu)
    _, gradient = problem.evaluate(theta, problem.blocks)
    return float(projected_gradient(theta, gradient, problem.low, problem.high)[problem.blocks].abs().max())


def _active_bounds(problem: ConvexProblem, theta: Tensor) -> tuple[str, ...]:
    """Name the variables that ended at a bound which is there only so that an optimum exists."""
    listed = []
    low, high = problem.low, problem.high
    outer_low = (low != 0) & torch.isfinite(low)
    for block in problem.blocks:
        stuck = ((theta[block] >= high) & (high >= LARGEST)) | ((theta[block] <= low) & outer_low)
        prefix = f"expert {block}: " if problem.num_blocks > 1 else ""
        listed += [f"{prefix}{problem.names[i]} = {theta[block, i]:g}" for i in stuck.nonzero().flatten().tolist()]
    return tuple(listed)
