"""Solutions of one convex problem at given strengths, each starting from the one before, with the passes counted.

The first solution is approached on a small sample in which hard voxels are frequent; from there a few Newton steps on
all voxels remain.
"""

from torch import Tensor

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.vector import VectorScaling
from segcal.fitting import trust_region
from segcal.fitting.affine_problem import AffineProblem
from segcal.fitting.convex_problem import ConvexProblem, Strengths
from segcal.fitting.frames import Frames
from segcal.fitting.newton import Solution, minimise
from segcal.fitting.request import Request
from segcal.fitting.temperature_problem import TemperatureProblem
from segcal.fitting.vector_problem import VectorProblem, vector_frame
from segcal.fitting.voxels import VoxelSource

# The first approach on a sample need not be exact.
COARSE_TOL = 1e-4


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


class Solver:
    """Solves the problem of a calibrator on given voxels, at one choice of strengths after another.

    Args:
        calibrator: what is fitted; :meth:`write` leaves a solution in it.
        source: the voxels.
        request: the fit that this belongs to.

    Attributes:
        problem: the problem.
        passes: how often the voxels were visited.
    """

    def __init__(self, calibrator: Calibrator, source: VoxelSource, request: Request) -> None:
        self.problem = make_problem(calibrator, source, request)
        self.passes = 0
        self._calibrator, self._source, self._request = calibrator, source, request
        self._theta: Tensor | None = None
        self._inverse_temperature: float | None = None

    def solve(self, strengths: Strengths, tol: float) -> Solution:
        """Go to the optimum at these strengths, from the last one."""
        problem = self.problem
        problem.set_strengths(strengths, self.inverse_temperature() if strengths.nu else 1.0)
        if self._theta is None:
            coarse, self._theta = problem.coarse(), problem.start()
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
            scaling = TemperatureScaling(self._calibrator.num_classes)
            problem = TemperatureProblem(scaling, self._source, self._request.device)
            solution = minimise(problem, problem.start(), problem.blocks, self._request.config.tol)
            self.passes += solution.evaluations
            self._inverse_temperature = float(solution.theta)
        return self._inverse_temperature

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")
