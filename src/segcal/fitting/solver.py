"""Solutions of one convex problem at given strengths, each starting from the one before, with the passes counted.

The first solution is approached on a small sample in which hard voxels are frequent; from there a few Newton steps on
all voxels remain.
"""

from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Strengths
from segcal.fitting import trust_region
from segcal.fitting.convex_problem import COARSE_TOL, ConvexProblem, TemperatureProblem, solve_temperature
from segcal.fitting.frames import Frames
from segcal.fitting.linear_problem import LinearProblem
from segcal.fitting.newton import Solution, minimise
from segcal.fitting.request import Request
from segcal.fitting.voxels import VoxelSource


def make_problem(calibrator: ConvexCalibrator, source: VoxelSource, request: Request) -> ConvexProblem:
    """Return the convex problem of this calibrator on these voxels."""
    if calibrator.one_temperature:
        return TemperatureProblem(source, request.device)
    frames = Frames(source, calibrator, request.config.memory, request.device)
    return LinearProblem(calibrator, frames, request.config.seed)


class Solver:
    """Solves the problem of a calibrator on given voxels, at one choice of strengths after another.

    Attributes:
        calibrator: what is fitted; :meth:`write` leaves a solution in it.
        problem: the problem.
        passes: how often the voxels were visited.
    """

    def __init__(self, calibrator: Calibrator, source: VoxelSource, request: Request) -> None:
        assert isinstance(calibrator, ConvexCalibrator)
        calibrator.prepare(voxels.logits for voxels in source)
        self.calibrator, self.problem = calibrator, make_problem(calibrator, source, request)
        self.passes = 0
        self._source, self._request = source, request
        self._theta: Tensor | None = None
        self._inverse_temperature: float | None = None

    def solve(self, strengths: Strengths, tol: float) -> Solution:
        """Go to the optimum at these strengths, from the last one."""
        problem = self.problem
        problem.set_strengths(strengths, self.inverse_temperature() if strengths.nu else 1.0)
        if self._theta is None:
            coarse, self._theta = problem.coarse(), self.calibrator.theta().detach().double().cpu()
            if strengths.nu:  # where the penalty leads to
                self._theta = problem.anchor.expand_as(self._theta).clone()
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

    def inverse_temperature(self) -> float:
        """Return the optimum of temperature scaling on the same voxels: where a strong penalty leads."""
        if self._inverse_temperature is None:
            request = self._request
            solution = solve_temperature(self._source, request.device, request.config.tol, approach=False)
            self.passes += solution.evaluations
            self._inverse_temperature = float(solution.theta)
        return self._inverse_temperature

    def write(self, theta: Tensor) -> None:
        """Leave a solution ``(E, P)`` in the calibrator."""
        self.calibrator.set_theta(theta)

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")
