r"""Fitting of convex calibrators to the optimum of mean NLL plus a quadratic penalty, with a certificate.

There is no learning rate, no patience and no trial budget, and the answer is the same every time. The penalty is Eq. 15
where its strengths are given. Where they are not, they are chosen on cases that had no part in the fit.

The path goes from a strength at which nothing but temperature scaling is left,

.. math:: R_s = \frac{s}{C (C - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{s}{C} \sum_j b_j^2
          + \frac{s}{C} \sum_j (W_{jj} - \beta)^2, \qquad \beta\ \text{of temperature scaling},

down to next to no penalty, each solution starting the next; the first two terms are Eq. 15, and terms of single classes
weigh more the fewer groups have them (:mod:`segcal.fitting.evidence`). The first solution is approached on few voxels,
among them many hard ones; from there a few Newton steps on all voxels remain. The path ends early where the held-out
NLL of the first fold has risen twice in a row, or once by half of what it had gained, and altogether where the folds so
far lose against temperature scaling at every strength, both by more than one standard error over groups; it is refined
around the best. Which one is taken: :mod:`segcal.fitting.strength_rule`. Of a region the path is shorter and walked to
its end in every fold: at the strong end, where next to nothing changes, its NLL rises and falls by chance.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.convex import ConvexCalibrator, Strengths
from segcal.cases.region_view import RegionView
from segcal.fitting import trust_region
from segcal.fitting.certificate import Certificate
from segcal.fitting.config import DEFAULT_STRENGTH, REGION_STRENGTHS, STRENGTHS
from segcal.fitting.convex_problem import COARSE_TOL, make_problem, solve_temperature
from segcal.fitting.division import Fold, each_fold, folds_of
from segcal.fitting.evidence import shrinkage
from segcal.fitting.newton import ConvexProblem, Solution, minimise, projected_gradient
from segcal.fitting.request import Request
from segcal.fitting.scores import Worth, both_nlls, measure
from segcal.fitting.strength_rule import is_worse, lowest, mean_over_cases, strongest_as_good, without_harm
from segcal.fitting.voxels import StreamedVoxels, VoxelSource

Fixed: TypeAlias = tuple[float | None, float | None, float | None]
# Solutions along the path need not be exact.
PATH_TOL, RISES = 3e-4, 2


class Solver:
    """Solves the problem of a calibrator on given voxels, at one choice of strengths after another.

    Attributes:
        calibrator: what is fitted; a solution is left in it by who asks for it.
        problem: the problem.
        passes: how often the voxels were visited.
        theta: where the next solution starts; the last one, unless told.
    """

    def __init__(self, calibrator: Calibrator, source: VoxelSource, request: Request) -> None:
        assert isinstance(calibrator, ConvexCalibrator)
        source = source.on(request.device)
        calibrator.prepare((voxels.logits, voxels.context) for voxels in source)
        self.shrink = shrinkage(calibrator, source, request.cases, request.config.evidence)
        self.calibrator, self.problem = calibrator, make_problem(calibrator, source, request, self.shrink)
        self.passes = 0
        self.theta: Tensor | None = None
        self._source, self._request = source, request
        self._inverse_temperature: float | None = None

    def solve(self, strengths: Strengths, tol: float) -> Solution:
        """Go to the optimum at these strengths, from the last one."""
        problem = self.problem
        problem.set_strengths(strengths, self.inverse_temperature() if strengths.nu else 1.0)
        if self.theta is None:
            coarse, self.theta = problem.coarse(), self.calibrator.theta().detach().double().cpu()
            if strengths.nu:  # where the penalty leads to
                self.theta = problem.anchor.expand_as(self.theta).clone()
            if coarse is not None:
                self.theta = minimise(coarse, self.theta, problem.blocks, COARSE_TOL).theta
        if problem.large:
            assert isinstance(problem, trust_region.ProductProblem)
            solution = trust_region.minimise(problem, self.theta, problem.blocks, tol, self._report)
        else:
            solution = minimise(problem, self.theta, problem.blocks, tol, self._report)
        self.theta = solution.theta
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

    def _report(self, residual: float) -> None:
        self._request.report(f"residual {residual:.1e}")


@dataclass(frozen=True)
class Walk:
    """The path: by strength, strongest first, what every held-out case says; the one that is taken, and the best."""

    worth: dict[float, dict[str, Worth]]
    chosen: float
    best: float

    @property
    def edge(self) -> str | None:
        """Which end of the path was chosen, in words; None for a strength in between."""
        if self.chosen == max(self.worth):
            return "the strongest: temperature scaling in all but name"
        return "the weakest: less is for those who fix it" if self.chosen < STRENGTHS[-2] else None

    def means(self) -> dict[float, float]:
        """Return the mean NLL over held-out cases, by strength."""
        return {strength: mean_over_cases(found) for strength, found in self.worth.items()}


def given(request: Request) -> Fixed:
    """Return lam, mu and nu where they are fixed, by the user or by having no effect; None where one is to be chosen.

    A user who fixes lam asks for Eq. 15, which has no third term.
    """
    config, (of_lam, of_mu) = request.config, request.calibrator.has_penalty
    lam, mu = config.lam if of_lam else 0.0, config.mu if of_mu else 0.0
    return lam, mu, config.nu if config.nu is not None or lam is None else 0.0


def at(strength: float, fixed: Fixed) -> Strengths:
    """Return all three strengths, those that are not fixed at `strength`."""
    return Strengths(*(strength if value is None else value for value in fixed))


def walk(request: Request, fixed: Fixed, parts: Iterable[Fold]) -> Walk | None:
    """Measure the strengths of the path on the held-out cases of these folds and choose; None if there are none."""
    worth: dict[float, dict[str, Worth]] = {}
    folds: list[_FoldWalk] = []
    may_end = not isinstance(request.cases, RegionView)
    path: Sequence[float] = STRENGTHS if may_end else REGION_STRENGTHS
    for fold in parts:
        folds.append(_FoldWalk(request, fold, fixed))
        tried = folds[-1].walk(path, may_end and len(folds) == 1)
        _add(worth, tried)
        path = list(tried)  # where the first fold ended, the others end
        losing = all(is_worse(request, worth[each], worth[max(path)]) for each in path if each < max(path))
        if may_end and losing and request.validation is None:
            break  # every strength loses against temperature scaling: the other folds need not be asked
    if not folds:
        return None
    best = lowest(worth)
    for one in folds:
        between = _between(best, list(worth))
        _add(worth, one.walk(between if may_end else [each for each in between if each > path[-1]], may_end=False))
    worth = dict(sorted(worth.items(), reverse=True))
    harmless = worth
    if request.calibrator.guarded:  # validation cases are few: the calibration cases, held out in turn, say more
        judges = {} if request.validation is None else measured(request, fixed, _own_folds(request), list(worth))
        kept = without_harm({strength: judges.get(strength, {}) | found for strength, found in worth.items()})
        harmless = {strength: worth[strength] for strength in kept}
    best = lowest(harmless)
    return Walk(worth, strongest_as_good(request, harmless, best, len(folds)), best)


def measured(
    request: Request, fixed: Fixed, parts: Iterable[Fold], path: Sequence[float]
) -> dict[float, dict[str, Worth]]:
    """Return what the held-out cases of these folds say of each strength, strongest first."""
    worth: dict[float, dict[str, Worth]] = {}
    for fold in parts:
        _add(worth, _FoldWalk(request, fold, fixed).walk(path, may_end=False))
    return worth


def _own_folds(request: Request) -> Iterator[Fold]:
    return each_fold(request.cases, request.source, None, request.config.folds, request.config.seed)


class _FoldWalk:
    """One fold: a solver on what it learns from, which goes on from the last strength, and what is held out."""

    def __init__(self, request: Request, fold: Fold, fixed: Fixed) -> None:
        self._request, self._held, self._fixed = request, fold.held, fixed
        self._solver = Solver(copy.deepcopy(request.calibrator), fold.learn, request)
        self._found: dict[float, Tensor] = {}

    def walk(self, path: Sequence[float], may_end: bool) -> dict[float, dict[str, Worth]]:
        """Return what the held-out cases say of each strength, as far as the path was walked."""
        tried: dict[float, dict[str, Worth]] = {}
        means: list[float] = []
        for strength in path:
            if stronger := [other for other in self._found if other > strength]:
                self._solver.theta = self._found[min(stronger)]
            self._found[strength] = self._solver.solve(at(strength, self._fixed), PATH_TOL).theta
            self._solver.calibrator.set_theta(self._found[strength])
            tried[strength] = measure(self._solver.calibrator, self._held, self._request.device)
            means.append(mean_over_cases(tried[strength]))
            self._request.report(f"strength {strength:g}: held-out NLL {means[-1]:.5f}")
            best = min(tried, key=lambda each: mean_over_cases(tried[each]))
            if may_end and _rises(means) and is_worse(self._request, tried[strength], tried[best]):
                break
        return tried


def _rises(means: list[float]) -> bool:
    """Return whether the NLL, of one strength after the other, has risen too often or by too much to fall again."""
    lost, gained, last = means[-1] - min(means), means[0] - min(means), means[-RISES - 1 :]
    return lost > gained / 2 > 0 or (len(last) > RISES and last == sorted(last))


def _add(worth: dict[float, dict[str, Worth]], more: dict[float, dict[str, Worth]]) -> None:
    for strength, found in more.items():
        worth.setdefault(strength, {}).update(found)


def _between(best: float, path: list[float]) -> list[float]:
    """Return strengths between the best and its neighbours on the path, strongest first."""
    if best == max(path):
        return []
    return [best * math.sqrt(10), best / math.sqrt(10)]


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
    return Certificate(
        method="convex",
        objective=float(solution.values[problem.blocks].sum()),
        nll=float(nll[problem.blocks].sum()),
        kkt_residual=float(solution.residuals[problem.blocks].max()),
        converged=solution.converged,
        passes=solver.passes,
        voxels=request.source.used,
        voxels_available=request.source.available,
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
