r"""The strength of a penalty, chosen on cases that had no part in the fit.

The path goes from a strength at which nothing but temperature scaling is left,

.. math:: R_s = \frac{s}{C (C - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{s}{C} \sum_j b_j^2
          + \frac{s}{C} \sum_j (W_{jj} - \beta)^2, \qquad \beta\ \text{of temperature scaling},

down to next to no penalty, each solution starting the next; the first two terms are Eq. 15, and terms of single classes
weigh more the fewer groups have them (:mod:`segcal.fitting.evidence`). It ends early where the held-out NLL of the
first fold has risen twice in a row, or once by half of its gain. It ends altogether where the folds so far lose against
temperature scaling at every strength. Both must be by more than one standard error over groups. It is refined around
the best. For a region the path is shorter and goes to its end in every fold. At the strong end, where almost nothing
changes, its NLL rises and falls by chance.

Of the strengths that are at most one standard error worse than the best, over the groups of held-out cases, the
strongest is taken. Where the cases cannot tell, the simpler map wins, and the simplest is temperature scaling. With one
held-out group the error is not known, and the best is taken.

A *guarded* calibrator first leaves out strengths with a mean ECE or BA-ECE of held-out cases more than 2 % above that
of temperature scaling. A lower NLL must not cost calibration. Of a *region* they also decide with it: a strength must
be no more than one standard error worse than the best in both. Most voxels are far from a region, so its NLL is that of
few voxels. Its standard error is that of the one case that went wrong. In the errors all cases have a say.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from segcal.calibrators.convex import Strengths
from segcal.cases.region_view import RegionView
from segcal.fitting.config import REGION_STRENGTHS, STRENGTHS
from segcal.fitting.convex_problem import Solver
from segcal.fitting.division import Fold, each_fold, groups_of
from segcal.fitting.request import Request
from segcal.fitting.scores import Worth, difference, mean_over_cases, measure

Fixed: TypeAlias = tuple[float | None, float | None, float | None]
# By strength, what every held-out case says of it.
Measured: TypeAlias = dict[float, dict[str, Worth]]
# Solutions along the path need not be exact.
PATH_TOL, RISES = 3e-4, 2
ERRORS = ("ece", "ba_ece")
# By what share a calibration error may be higher than that of temperature scaling.
VISIBLE = 0.02


@dataclass(frozen=True)
class Walk:
    """The path: by strength, strongest first, what every held-out case says; and the one that is taken."""

    worth: Measured
    chosen: float

    @property
    def edge(self) -> str | None:
        """The chosen end of the path, in words; None for a strength in between."""
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
    worth: Measured = {}
    folds: list[FoldWalk] = []
    may_end = not isinstance(request.cases, RegionView)
    path: Sequence[float] = STRENGTHS if may_end else REGION_STRENGTHS
    for fold in parts:
        folds.append(FoldWalk(request, fold, fixed))
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
        own = each_fold(request.cases, request.source, None, request.config.folds, request.config.seed)
        judges = {} if request.validation is None else measured(request, fixed, own, list(worth))
        kept = without_harm({strength: judges.get(strength, {}) | found for strength, found in worth.items()})
        harmless = {strength: worth[strength] for strength in kept}
    return Walk(worth, strongest_as_good(request, harmless, lowest(harmless), len(folds)))


def measured(request: Request, fixed: Fixed, parts: Iterable[Fold], path: Sequence[float]) -> Measured:
    """Return what the held-out cases of these folds say of each strength, strongest first."""
    worth: Measured = {}
    for fold in parts:
        _add(worth, FoldWalk(request, fold, fixed).walk(path, may_end=False))
    return worth


class FoldWalk:
    """One fold: a solver on what it learns from, which goes on from the last strength, and what is held out."""

    def __init__(self, request: Request, fold: Fold, fixed: Fixed) -> None:
        self._request, self._held, self._fixed = request, fold.held, fixed
        self._solver = Solver(copy.deepcopy(request.calibrator), fold.learn, request)
        self._found: dict[float, Tensor] = {}

    def measured_at(self, strength: float) -> dict[str, Worth]:
        """Return what the held-out cases say of one strength, from the solution at the next stronger one, if any."""
        if stronger := [other for other in self._found if other > strength]:
            self._solver.theta = self._found[min(stronger)]
        self._found[strength] = self._solver.solve(at(strength, self._fixed), PATH_TOL).theta
        self._solver.calibrator.set_theta(self._found[strength])
        return measure(self._solver.calibrator, self._held, self._request.device)

    def walk(self, path: Sequence[float], may_end: bool) -> Measured:
        """Return what the held-out cases say of each strength, as far as the path was walked."""
        tried: Measured = {}
        means: list[float] = []
        for strength in path:
            tried[strength] = self.measured_at(strength)
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


def _add(worth: Measured, more: Measured) -> None:
    for strength, found in more.items():
        worth.setdefault(strength, {}).update(found)


def _between(best: float, path: list[float]) -> list[float]:
    """Return strengths between the best and its neighbours on the path, strongest first."""
    if best == max(path):
        return []
    return [best * math.sqrt(10), best / math.sqrt(10)]


def lowest(worth: Measured) -> float:
    """Return the strength with the lowest mean NLL; of equal ones, the strongest."""
    return min(worth, key=lambda strength: (mean_over_cases(worth[strength]), -strength))


def without_harm(worth: Measured) -> Measured:
    """Return the strengths at which no calibration error is visibly higher than that of temperature scaling."""
    simple = worth[max(worth)]
    kept = {}
    for strength, found in worth.items():
        pairs = [(_mean_error(found, what), _mean_error(simple, what)) for what in ERRORS]
        if all(own <= (1 + VISIBLE) * other for own, other in pairs):
            kept[strength] = found
    return kept


def _mean_error(found: dict[str, Worth], what: str) -> float:
    """Return the mean over the cases in which it is defined; 0 if there are none."""
    values = [value for worth in found.values() if (value := getattr(worth, what)) is not None]
    return sum(values) / max(1, len(values))


def is_worse(request: Request, found: Mapping[str, Worth], other: Mapping[str, Worth]) -> bool:
    """Return whether the NLL of held-out cases is higher than another's by more than one standard error over groups.

    With one group that is not known, and nothing is said to be worse.
    """
    mean, error = difference(found, other, groups_of(request.judges))
    return error is not None and mean > error


def strongest_as_good(request: Request, worth: Measured, best: float, folds: int) -> float:
    """Return the strongest that held-out cases cannot tell from the best."""
    groups = groups_of(request.judges)
    decisive = ("nll", *(ERRORS if request.calibrator.guarded and isinstance(request.judges, RegionView) else ()))

    def is_as_good(strength: float, what: str) -> bool:
        mean, error = difference(worth[strength], worth[best], groups, folds, what)
        return error is not None and mean <= error

    for strength in sorted(worth, reverse=True):
        if strength == best or all(is_as_good(strength, what) for what in decisive):
            return strength
    raise AssertionError("the best is as good as itself")
