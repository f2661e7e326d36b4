r"""The strength of the penalty, chosen on cases that had no part in the fit.

The path goes from a strength at which nothing but temperature scaling is left,

.. math:: R_s = \frac{s}{C (C - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{s}{C} \sum_j b_j^2
          + \frac{s}{C} \sum_j (W_{jj} - \beta)^2, \qquad \beta\ \text{of temperature scaling},

down to no penalty, each solution starting the next; the first two terms are Eq. 15. It ends early where the held-out
NLL of the first fold has risen twice in a row, and altogether where that fold gains nothing over temperature scaling;
it is refined around the best. Of the strengths that are no more than one standard error worse than the best, over the
groups of held-out cases, the strongest is taken: what the cases cannot tell apart is decided for the simpler map, and
the simplest is temperature scaling. With one held-out group the error is not known, and the best is taken.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from segcal.calibrators.convex import Strengths
from segcal.fitting.config import STRENGTHS
from segcal.fitting.held_out import Fold, Worth, each_fold, group_names, measure, noise, paired
from segcal.fitting.request import Request
from segcal.fitting.solver import Solver

# Solutions along the path need not be exact.
PATH_TOL = 3e-4
# So many strengths in a row with a rising NLL end the path.
RISES = 2


@dataclass(frozen=True)
class Walk:
    """What was found along the path.

    Attributes:
        worth: by strength, what every held-out case says; strongest first.
        chosen: the strength that is taken.
        best: the strength with the lowest mean NLL.
        folds: of how many folds the cases were held out.
    """

    worth: dict[float, dict[str, Worth]]
    chosen: float
    best: float
    folds: int

    @property
    def edge(self) -> str | None:
        """Which end of the path was chosen, in words; None for a strength in between."""
        if self.chosen == max(self.worth):
            return "the strongest: temperature scaling in all but name"
        return "no penalty at all: more strengths are not to be had" if self.chosen == 0 else None

    def means(self) -> dict[float, float]:
        """Return the mean NLL over held-out cases, by strength."""
        return {strength: _mean(found) for strength, found in self.worth.items()}


def given(request: Request, has_effect: tuple[bool, bool]) -> tuple[float | None, float | None, float | None]:
    """Return lam, mu and nu where they are fixed, by the user or by having no effect; None where one is to be chosen.

    A user who fixes lam asks for Eq. 15, which has no third term.
    """
    config = request.config
    lam = config.lam if has_effect[0] else 0.0
    mu = config.mu if has_effect[1] else 0.0
    nu = config.nu if config.nu is not None or lam is None else 0.0
    return lam, mu, nu


def at(strength: float, fixed: tuple[float | None, float | None, float | None]) -> Strengths:
    """Return all three strengths, those that are not fixed at `strength`."""
    return Strengths(*(strength if value is None else value for value in fixed))


def walk(request: Request, fixed: tuple[float | None, float | None, float | None]) -> Walk | None:
    """Measure the strengths of the path on held-out cases and choose; None if no case can be held out."""
    config = request.config
    worth: dict[float, dict[str, Worth]] = {}
    folds: list[_FoldWalk] = []
    path: Sequence[float] = STRENGTHS
    for fold in each_fold(request.cases, request.source, request.validation, config.folds, config.seed):
        folds.append(_FoldWalk(request, fold, fixed))
        tried = folds[-1].walk(path, may_end=len(folds) == 1)
        _add(worth, tried)
        path = list(tried)  # where the first fold ended, the others end
        if len(folds) == 1 and _lowest(tried) == max(path) and request.validation is None:
            break  # nothing is gained over temperature scaling: the other folds need not be asked
    if not folds:
        return None
    best = _lowest(worth)
    for one in folds:
        _add(worth, one.walk(_between(best, list(worth)), may_end=False))
    worth = dict(sorted(worth.items(), reverse=True))
    best = _lowest(worth)
    return Walk(worth, _strongest_as_good(request, worth, best, len(folds)), best, len(folds))


class _FoldWalk:
    """One fold: a solver on what it learns from, which goes on from the last strength, and what is held out."""

    def __init__(self, request: Request, fold: Fold, fixed: tuple[float | None, float | None, float | None]) -> None:
        self._request, self._held, self._fixed = request, fold.held, fixed
        self._solver = Solver(copy.deepcopy(request.calibrator), fold.learn, request)

    def walk(self, path: Sequence[float], may_end: bool) -> dict[float, dict[str, Worth]]:
        """Return what the held-out cases say of each strength, as far as the path was walked."""
        tried: dict[float, dict[str, Worth]] = {}
        means: list[float] = []
        for strength in path:
            self._solver.write(self._solver.solve(at(strength, self._fixed), PATH_TOL).theta)
            tried[strength] = measure(self._solver.calibrator, self._held, self._request.device)
            means.append(_mean(tried[strength]))
            self._request.report(f"strength {strength:g}: held-out NLL {means[-1]:.5f}")
            if may_end and len(means) > RISES and means[-RISES - 1 :] == sorted(means[-RISES - 1 :]):
                break
        return tried


def _add(worth: dict[float, dict[str, Worth]], more: dict[float, dict[str, Worth]]) -> None:
    for strength, found in more.items():
        worth.setdefault(strength, {}).update(found)


def _mean(found: dict[str, Worth]) -> float:
    return sum(worth.nll for worth in found.values()) / len(found)


def _lowest(worth: dict[float, dict[str, Worth]]) -> float:
    """Return the strength with the lowest mean NLL; of equal ones, the strongest."""
    return min(worth, key=lambda strength: (_mean(worth[strength]), -strength))


def _between(best: float, path: list[float]) -> list[float]:
    """Return strengths between the best and its neighbours on the path, strongest first."""
    if best in (0, max(path)):
        return []
    return [best * math.sqrt(10), best / math.sqrt(10)]


def _strongest_as_good(request: Request, worth: dict[float, dict[str, Worth]], best: float, folds: int) -> float:
    cases = request.cases if request.validation_cases is None else request.validation_cases
    for strength in sorted(worth, reverse=True):
        ids, differences = paired(worth[strength], worth[best])
        mean, error = noise(differences, group_names(cases, ids), folds)
        if strength == best or (error is not None and mean <= error):
            return strength
    raise AssertionError("the best is as good as itself")
