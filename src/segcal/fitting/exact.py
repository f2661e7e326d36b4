r"""Fitting of convex calibrators to the optimum of mean NLL plus a quadratic penalty, with a certificate.

There is no learning rate, no patience and no trial budget, and the answer is the same every time. The penalty is Eq. 15
where its strengths are given; where they are not, :mod:`segcal.fitting.strengths` chooses them. The first solution is
approached on few voxels, among them many hard ones; from there a few Newton steps on all voxels remain.
"""

import torch
from torch import Tensor

from segcal.calibrators.convex import Strengths
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import DEFAULT_STRENGTH
from segcal.fitting.convex_problem import Solver, make_problem
from segcal.fitting.division import folds_of
from segcal.fitting.newton import ConvexProblem, projected_gradient
from segcal.fitting.request import Request
from segcal.fitting.scores import both_nlls, certify
from segcal.fitting.strengths import Fixed, Walk, at, given, walk
from segcal.fitting.voxels import StreamedVoxels

# Mean NLL of an expert's own voxels below which they count as explained.
SEPARABLE_NLL = 1e-4


def fit_convex(request: Request) -> Certificate:
    """Fit a convex calibrator; see the module docstring."""
    solver = Solver(request.calibrator, request.source, request)
    problem = solver.problem
    fixed = given(request)
    found = walk(request, fixed, folds_of(request, request.config)) if None in fixed else None
    strengths = at(DEFAULT_STRENGTH if found is None else found.chosen, fixed)
    solution = solver.solve(strengths, request.config.tol)
    solver.calibrator.set_theta(solution.theta)
    nll = solution.values - problem.penalties(solution.theta)
    own = float(solution.theta) if solver.calibrator.one_temperature else None
    return certify(
        request,
        "convex",
        float(nll[problem.blocks].sum()),
        objective=float(solution.values[problem.blocks].sum()),
        kkt_residual=float(solution.residuals[problem.blocks].max()),
        converged=solution.converged,
        passes=solver.passes,
        lam=strengths.lam,
        mu=strengths.mu,
        nu=strengths.nu,
        inverse_temperature=solver.inverse_temperature() if strengths.nu else own,
        validation_nll=None if request.validation is None else both_nlls(request)[1],
        path=_path(found, fixed),
        active_bounds=_active_bounds(problem, solution.theta),
        separable=tuple(e for e in problem.blocks if nll[e] < SEPARABLE_NLL * problem.block_weights[e]),
        untouched=tuple(e for e in range(problem.num_blocks) if e not in problem.blocks),
        shrunk=solver.shrink.pairs if solver.shrink is not None and strengths.nu else (),
        full_residual=_full_residual(request, solver, solution.theta, strengths) if request.config.verify else None,
        details={} if found is None or found.edge is None else {"edge": found.edge},
    )


def _path(found: Walk | None, fixed: Fixed) -> tuple[dict[str, float], ...]:
    if found is None:
        return ()
    return tuple(at(s, fixed)._asdict() | {"held_out_nll": mean} for s, mean in found.means().items())


def _full_residual(request: Request, solver: Solver, theta: Tensor, strengths: Strengths) -> float:
    """Return the residual of the same objective on all voxels, streamed."""
    voxels = StreamedVoxels(request.cases, lambda: None, contexts=request.calibrator.wants)
    voxels = voxels.weighted(request.weights or {})
    problem = make_problem(solver.calibrator, voxels, request, solver.shrink)
    problem.set_strengths(strengths, solver.inverse_temperature() if strengths.nu else 1.0)
    _, gradient = problem.evaluate(theta, problem.blocks)
    return float(projected_gradient(theta, gradient, problem.low, problem.high)[problem.blocks].abs().max())


def _active_bounds(problem: ConvexProblem, theta: Tensor) -> tuple[str, ...]:
    """Name the variables that ended at a bound which is there only so that an optimum exists."""
    listed = []
    lows, highs = problem.low.expand_as(theta), problem.high.expand_as(theta)
    for block in problem.blocks:
        low, high = lows[block], highs[block]
        outer_low = (low != 0) & torch.isfinite(low)
        outer_high = torch.ones_like(outer_low) if problem.inner is None else ~problem.inner[block]
        stuck = ((theta[block] >= high) & outer_high | ((theta[block] <= low) & outer_low)) & (low < high)
        prefix = f"expert {block}: " if problem.num_blocks > 1 else ""
        listed += [f"{prefix}{problem.names[i]} = {theta[block, i]:g}" for i in stuck.nonzero().flatten().tolist()]
    return tuple(listed)
